"""Files that make no sense, paths that are missing, and a kernel that does not tell."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kproxy_ipt.errors import SourceError
from kproxy_ipt.objects.events import Gone, Kind, Put, Trouble
from kproxy_ipt.sources.folder_watch import FolderSource
from kproxy_ipt.testing.folder_watching import Heard, service_yaml, watch_paths


def test_cut_file_keeps_its_last_good_version(folder: Path) -> None:
    """A file that does not parse at all takes nothing away; when it parses again it counts again."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "a.yaml").write_text('{"apiVersion": "v1", "kind": "List", "items": [{"metadata": {"na')
        await heard.finding("2 of the objects of its last good version missing")
        assert sorted(heard.services) == ["db", "web"]
        (folder / "a.yaml").write_text(service_yaml("web"))
        await heard.names("web")

    watch_paths(scenario, folder)


def test_broken_document_leaves_the_others_in_force(folder: Path) -> None:
    """Good documents apply at once, the object that may be in the broken one stays as it was."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "a.yaml").write_text(service_yaml("web", 81) + "---\nx: [\n---\n" + service_yaml("new"))
        await heard.names("db", "new", "web")

        assert heard.ports == {"web": 81, "new": 80, "db": 80}
        assert any("a.yaml, document 2" in text for text in heard.findings)

    watch_paths(scenario, folder)


def test_object_that_makes_no_sense_goes_with_its_reason(folder: Path) -> None:
    """It can be named, so it is known that it is this one; the other one stays."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "a.yaml").write_text(service_yaml("web", 99999) + "---\n" + service_yaml("db"))
        await heard.names("db")
        (gone,) = [event for event in heard.events if isinstance(event, Gone)]

        assert (gone.namespace, gone.name) == ("shop", "web")
        assert [finding.object for finding in gone.findings] == ["Service shop/web"]

    watch_paths(scenario, folder)


@pytest.mark.parametrize("text", ["", "# nothing left\n"])
def test_emptied_file_takes_its_objects_away(folder: Path, text: str) -> None:
    """Nothing in a file is a wish, if an odd one: it is told."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "a.yaml").write_text(text)
        await heard.names()

    watch_paths(scenario, folder)


def test_missing_path_is_a_trouble_until_it_is_there(tmp_path: Path, folder: Path) -> None:
    """Nothing is listed before all paths can be read: a part of the Services is not all of them."""
    late = tmp_path / "one/late.yaml"

    async def scenario(heard: Heard) -> None:
        await heard.until(lambda: len(heard.events) >= 3)
        assert [(event.kind, event.message) for event in heard.events[:3] if isinstance(event, Trouble)] == [
            (kind, f"{late}: No such file or directory") for kind in Kind
        ]
        late.parent.mkdir()
        late.write_text(service_yaml("late"))
        await heard.names("db", "late", "web")
        assert not any(isinstance(event, Put) for event in heard.events)

    watch_paths(scenario, folder, late)


def test_folder_that_is_removed_and_made_again_is_picked_up(folder: Path) -> None:
    """Meanwhile what it said stays in force: a path that is missing is a mistake, not a wish."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        shutil.rmtree(folder)
        await heard.until(lambda: any(isinstance(event, Trouble) for event in heard.events))
        folder.mkdir()
        (folder / "b.yaml").write_text(service_yaml("web", 81))
        await heard.port("web", 81)
        await heard.names("web")
        (folder / "c.yaml").write_text(service_yaml("again"))
        await heard.names("again", "web")

        first = next(index for index, event in enumerate(heard.events) if isinstance(event, Trouble))
        assert not any(isinstance(event, Gone) for event in heard.events[:first])

    watch_paths(scenario, folder)


def test_folder_of_a_folder_that_is_moved_away_is_missing(folder: Path, tmp_path: Path) -> None:
    """Each folder on the way is watched, not only the last one."""
    nested = tmp_path / "x/y/z"
    nested.parent.mkdir(parents=True)
    folder.rename(nested)

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (tmp_path / "x").rename(tmp_path / "old")
        await heard.until(lambda: any(isinstance(event, Trouble) for event in heard.events))
        (tmp_path / "old").rename(tmp_path / "x")
        (nested / "a.yaml").write_text(service_yaml("back"))
        await heard.names("back")

    watch_paths(scenario, nested)


def test_file_that_cannot_be_read_keeps_what_it_said(folder: Path) -> None:
    """A link into the void in place of a manifest is a trouble; the other files go on."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "link").symlink_to("/nowhere")
        (folder / "link").rename(folder / "a.yaml")
        await heard.until(lambda: any(isinstance(event, Trouble) for event in heard.events))
        assert sorted(heard.services) == ["db", "web"]
        (folder / "a.yaml").unlink()
        (folder / "a.yaml").write_text(service_yaml("web"))
        await heard.names("web")

    watch_paths(scenario, folder)


def test_standard_input_cannot_be_watched() -> None:
    """It can be read once, and never again."""
    with pytest.raises(SourceError, match="standard input cannot be watched"):
        FolderSource(["-"])


_POLLING = """
import asyncio, sys
from pathlib import Path
from kproxy_ipt.objects.events import Listed, Put, Trouble
from kproxy_ipt.sources.folder_watch import FolderSource
folder, limit = Path(sys.argv[1]), sys.argv[2]
Path("/proc/sys/user/" + limit).write_text("1" if limit.endswith("watches") else "0")

async def main():
    done = asyncio.Event()
    def deliver(event):
        if isinstance(event, Listed) and event.objects:
            print("listed", len(event.objects))
            (folder / "b.yaml").write_text((folder / "a.yaml").read_text().replace("web", "two"))
        if isinstance(event, Put):
            print("put", event.object.metadata.name)
            done.set()
    source = FolderSource([str(folder)], note=print, quiet_s=0.01, poll_s=0.05)
    task = asyncio.create_task(source.run(deliver))
    await asyncio.wait_for(done.wait(), 10)
    task.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize("limit", ["max_inotify_watches", "max_inotify_instances"])
def test_files_are_polled_where_watching_is_refused(folder: Path, limit: str) -> None:
    """The limits of a user namespace of its own are used up at once; a line says so."""
    (folder / "a.yaml").write_text(service_yaml("web"))
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", _POLLING, str(folder), limit]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert completed.stdout.splitlines()[-2:] == ["listed 1", "put two"], completed.stderr
    assert "files are looked at every 0.05 s" in completed.stdout
