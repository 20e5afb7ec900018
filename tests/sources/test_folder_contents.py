"""Looking at files again: what is read, and what is not."""

import os
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from kproxy_ipt.sources.files import bytes_of
from kproxy_ipt.sources.folder_contents import Circumstances, Contents, look, objects_of, restored
from kproxy_ipt.sources.watch_places import Places, remote_filesystem


def _service(name: str) -> str:
    """A Service in namespace `shop` as YAML."""
    metadata = f"{{name: {name}, namespace: shop}}"
    return f"apiVersion: v1\nkind: Service\nmetadata: {metadata}\nspec: {{ports: [{{port: 80}}]}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one manifest."""
    (tmp_path / "a.yaml").write_text(_service("web"))
    return tmp_path


def test_only_changed_files_are_read_again(folder: Path) -> None:
    """Versions of files that nobody touched are the very ones of the last look."""
    (folder / "b.yaml").write_text(_service("still"))
    first = look([str(folder)], Contents(), Circumstances(), Places(), clock_ns=lambda: time.time_ns() + 10**9)
    (folder / "a.yaml").write_text(_service("other"))
    second = look([str(folder)], first, Circumstances(), Places())

    assert second.versions[folder / "b.yaml"] is first.versions[folder / "b.yaml"]
    assert [service.metadata.name for service in objects_of(second).services] == ["other", "still"]


def test_file_that_keeps_its_status_is_read_again_when_told(folder: Path) -> None:
    """Within one tick of the file system's clock a second change of the same length does not show in the status."""
    blind = look([str(folder)], Contents(), Circumstances(), Places(), clock_ns=lambda: time.time_ns() + 10**9)
    told = Circumstances(touched=frozenset({str(folder / "a.yaml")}))

    assert look([str(folder)], blind, Circumstances(), Places()).says_the_same(blind)
    assert not look([str(folder)], blind, told, Places()).says_the_same(blind)


def test_file_that_was_just_changed_is_read_again(folder: Path) -> None:
    """Its status may not show a change that came right after the reading."""
    first = look([str(folder)], Contents(), Circumstances(), Places())
    os.utime(folder / "a.yaml")
    fresh = look([str(folder)], first, Circumstances(), Places())

    assert fresh.versions[folder / "a.yaml"].is_fresh
    assert not look([str(folder)], fresh, Circumstances(), Places()).says_the_same(fresh)


def test_unsure_file_is_read_when_it_looks_the_same_twice(folder: Path) -> None:
    """Where nobody tells that a file is being written, it must have come to rest."""
    unsure = Circumstances(is_unsure=True)
    first = look([str(folder)], Contents(), Circumstances(), Places())
    looks = [first]
    for text in (_service("half"), _service("whole"), None):
        if text is not None:
            (folder / "a.yaml").write_text(text)
        looks.append(look([str(folder)], looks[-1], unsure, Places()))
    names = [[service.metadata.name for service in objects_of(found).services] for found in looks]

    assert names == [["web"], ["web"], ["web"], ["whole"]]


def test_file_that_is_too_large_keeps_what_it_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a trouble with a reason; the other files go on."""
    first = look([str(folder)], Contents(), Circumstances(), Places())
    (folder / "a.yaml").write_text(_service("grown-far-too-large"))
    (folder / "b.yaml").write_text(_service("b"))
    monkeypatch.setattr("kproxy_ipt.sources.files.MAX_BYTES", len(_service("web")))
    second = look([str(folder)], first, Circumstances(), Places())

    assert second.troubles == (f"{folder / 'a.yaml'}: larger than {len(_service('web'))} bytes",)
    assert [service.metadata.name for service in objects_of(second).services] == ["b", "web"]


def test_file_named_twice_is_read_once(folder: Path) -> None:
    """A folder and a file in it."""
    contents = look([str(folder), str(folder / "a.yaml")], Contents(), Circumstances(), Places())

    assert list(contents.versions) == [folder / "a.yaml"]
    assert len(objects_of(contents).services) == 1


def test_files_that_were_being_written_count_as_before(folder: Path) -> None:
    """What may be half-read is taken back: an old file says what it said, a new one nothing yet."""
    before = look([str(folder)], Contents(), Circumstances(), Places())
    (folder / "a.yaml").write_text(_service("half"))
    (folder / "b.yaml").write_text(_service("new"))
    (folder / "c.yaml").write_text(_service("whole"))
    found = look([str(folder)], before, Circumstances(), Places())
    told = restored(found, before, frozenset(os.path.realpath(folder / name) for name in ("a.yaml", "b.yaml")))

    assert [service.metadata.name for service in objects_of(told).services] == ["web", "whole"]


def test_file_that_changes_while_it_is_read_is_a_candidate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it said, and is looked at again."""
    first = look([str(folder)], Contents(), Circumstances(), Places())
    (folder / "a.yaml").write_text(_service("half"))

    def read_slowly(opened: BinaryIO, name: str) -> bytes:
        text = bytes_of(opened, name)
        (folder / "a.yaml").write_text(_service("complete"))
        return text

    monkeypatch.setattr("kproxy_ipt.sources.folder_contents.bytes_of", read_slowly)
    second = look([str(folder)], first, Circumstances(), Places())
    monkeypatch.undo()
    third = look([str(folder)], second, Circumstances(), Places())
    names = [[service.metadata.name for service in objects_of(found).services] for found in (second, third)]

    assert list(second.candidates) == [folder / "a.yaml"]
    assert names == [["web"], ["complete"]]


def test_folder_without_manifests_is_an_error_only_at_first(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All its files may go; a folder that took its place and is empty may not be ready yet."""
    first = look([str(folder)], Contents(), Circumstances(), Places())
    (folder / "a.yaml").unlink()
    emptied = look([str(folder)], first, Circumstances(), Places())
    other = tmp_path_factory.mktemp("other")
    other.rename(folder)
    replaced = look([str(folder)], first, Circumstances(), Places())

    assert (emptied.troubles, objects_of(emptied).services) == ((), ())
    assert len(replaced.troubles) == 1
    assert [service.metadata.name for service in objects_of(replaced).services] == ["web"]


def test_way_to_a_file_is_followed_through_links(tmp_path: Path) -> None:
    """Steps up and links are resolved as the kernel does it; each folder on the way is watched for its step."""
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "real" / "a.yaml").write_text("")
    (tmp_path / "link").symlink_to("real/below")
    places = Places()
    places.add_path(tmp_path / "link" / ".." / "a.yaml")
    top, real = (places.folders[str(folder)] for folder in (tmp_path, tmp_path / "real"))

    assert (top.ways, top.files) == ({"link", "real"}, set())
    assert (real.ways, real.files) == ({"below"}, {"a.yaml"})


def test_links_in_circles_end(tmp_path: Path) -> None:
    """They lead nowhere, and are watched for the day when they do."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    places = Places()
    places.add_path(tmp_path / "a")

    assert places.folders[str(tmp_path)].ways == {"a", "b"}


_MOUNTS = """22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 22 0:40 / /srv rw shared:2 - nfs4 server:/export rw
a line that nobody understands
91 90 0:41 / /srv/local\\040disk rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"), [("/etc", ""), ("/srv/a", "nfs4"), ("/srvx", ""), ("/srv/local disk/a", ""), ("/srv", "nfs4")]
)
def test_file_systems_of_other_machines_are_known(path: str, kind: str) -> None:
    """The innermost mount counts; what others change there is not told by this kernel."""
    assert remote_filesystem(path, _MOUNTS) == kind
