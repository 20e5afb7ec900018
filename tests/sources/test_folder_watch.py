"""Files and folders that are watched, with the real kernel."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from kproxy_ipt.objects.events import Contact, Gone, Kind, Listed
from kproxy_ipt.sources.files import read_paths
from kproxy_ipt.testing.folder_watching import Heard, service_yaml, services_yaml, watch_paths


def test_everything_is_listed_first(folder: Path) -> None:
    """All three kinds, as a single reading gives them."""
    (folder / "node.yaml").write_text("{apiVersion: v1, kind: Node, metadata: {name: node1}}\n")
    (folder / "odd.yaml").write_text("x: [\n")
    expected = read_paths([str(folder)])

    async def scenario(heard: Heard) -> None:
        await heard.until(lambda: len(heard.events) >= 3)
        lists = [event for event in heard.events[:3] if isinstance(event, Listed)]

        assert [event.kind for event in lists] == list(Kind)
        assert [event.objects for event in lists] == [expected.services, (), expected.nodes]
        assert sum((event.findings for event in lists), ()) == expected.findings

    watch_paths(scenario, folder)


def test_changed_file_tells_what_differs(folder: Path) -> None:
    """An object that is as before is not told again."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "a.yaml").write_text(service_yaml("web", 81) + "---\n" + service_yaml("db"))
        await heard.port("web", 81)

        assert heard.touched == {"web"}

    watch_paths(scenario, folder)


def test_new_and_deleted_files_are_followed(folder: Path) -> None:
    """At any depth, in folders that are new themselves; the last manifest may go."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "one/two").mkdir(parents=True)
        (folder / "one/two/b.yml").write_text(service_yaml("deep"))
        await heard.names("db", "deep", "web")
        (folder / "a.yaml").unlink()
        await heard.names("deep")
        shutil.rmtree(folder / "one")
        await heard.names()

    watch_paths(scenario, folder)


def test_file_that_is_being_written_is_not_read(folder: Path) -> None:
    """Neither its half nor its emptiness counts until it is closed, though other files are read meanwhile."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        with (folder / "a.yaml").open("w") as opened:
            opened.write(service_yaml("web", 81))
            opened.flush()
            (folder / "b.yaml").write_text(service_yaml("other"))
            await heard.names("db", "other", "web")
            assert heard.touched == {"other"}
            opened.write("---\n" + service_yaml("db", 82))
        await heard.port("db", 82)
        assert heard.ports["web"] == 81
        assert not any(isinstance(event, Gone) for event in heard.events)

    watch_paths(scenario, folder)


def test_editor_that_renames_is_followed_without_a_gap(folder: Path) -> None:
    """The old file is moved away, a new one takes its place; what both hold is never gone."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "a.yaml").rename(folder / "a.yaml~")
        (folder / ".a.yaml.swp").write_text(service_yaml("wrong"))
        (folder / ".a.yaml.swp").rename(folder / "a.yaml.tmp")
        (folder / "a.yaml.tmp").write_text(services_yaml("web", "new"))
        (folder / "a.yaml.tmp").rename(folder / "a.yaml")
        await heard.names("new", "web")

        assert heard.touched == {"new", "db"}

    watch_paths(scenario, folder)


def test_leftovers_of_editors_tell_nothing(folder: Path) -> None:
    """Hidden files and backups are no manifests."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        for name in (".b.yaml", "b.yaml~", "b.yaml.bak", "#b.yaml#", ".b.yaml.swp"):
            (folder / name).write_text(service_yaml("wrong"))
        (folder / "c.yaml").write_text(service_yaml("right"))
        await heard.names("db", "right", "web")

        assert heard.touched == {"right"}

    watch_paths(scenario, folder)


@pytest.mark.parametrize("watched", [".", "a.yaml", "..data"])
def test_config_map_swap_is_followed(tmp_path: Path, watched: str) -> None:
    """Kubernetes changes all files of a mounted ConfigMap by renaming one hidden link."""
    mount = tmp_path / "mount"
    (mount / "..1").mkdir(parents=True)
    (mount / "..1/a.yaml").write_text(services_yaml("web", "db"))
    (mount / "..data").symlink_to("..1")
    (mount / "a.yaml").symlink_to("..data/a.yaml")

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (mount / "..2").mkdir()
        (mount / "..2/a.yaml").write_text(services_yaml("web", "new"))
        (mount / "..data_tmp").symlink_to("..2")
        (mount / "..data_tmp").rename(mount / "..data")
        shutil.rmtree(mount / "..1")
        await heard.names("new", "web")

        assert heard.touched == {"new", "db"}

    watch_paths(scenario, mount / watched)


@pytest.mark.usefixtures("folder")
def test_link_on_the_way_that_turns_is_followed(tmp_path: Path) -> None:
    """`current` is a link to a release; its turning changes everything behind it."""
    other = tmp_path / "releases/2/manifests"
    other.mkdir(parents=True)
    (other / "a.yaml").write_text(service_yaml("second"))
    (tmp_path / "current").symlink_to(".")

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (tmp_path / "next").symlink_to("releases/2")
        (tmp_path / "next").rename(tmp_path / "current")
        await heard.names("second")

    watch_paths(scenario, tmp_path / "current/manifests")


def test_later_path_wins_and_earlier_one_comes_back(folder: Path) -> None:
    """As `kubectl apply` of one file after the other."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        (folder / "b.yaml").write_text(service_yaml("web", 82))
        await heard.port("web", 82)
        await heard.finding("one definition in")
        (folder / "b.yaml").unlink()
        await heard.port("web", 80)

    watch_paths(scenario, folder)


@pytest.mark.parametrize("seed", range(3))
def test_after_any_changes_the_state_is_that_of_a_fresh_start(folder: Path, seed: int) -> None:
    """Files are written, renamed, removed in any order and rhythm; what is known at the end is what is there."""
    chance = random.Random(seed)
    names = [folder / place for place in ("a.yaml", "b.yaml", "one/c.yaml", "one/two/d.yaml", "three/e.yaml")]

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        for step in range(60):
            file = chance.choice(names)
            file.parent.mkdir(parents=True, exist_ok=True)
            _change(file, chance, step)
            await asyncio.wait([asyncio.create_task(heard.next())], timeout=chance.choice((0, 0, 0, 0.02, 0.05)))
        (folder / "end.yaml").write_text(service_yaml("end"))
        expected = {service.metadata.name: service for service in read_paths([str(folder)]).services}
        await heard.until(lambda: heard.services == expected)

    watch_paths(scenario, folder)


def _change(file: Path, chance: random.Random, step: int) -> None:
    """One thing that people and programs do to files."""
    text = services_yaml(*chance.sample(["web", "db", "x", "v", "z"], 2)).replace("80", str(1000 + step))
    match chance.randrange(5):
        case 0:
            file.unlink(missing_ok=True)
        case 1:
            file.with_suffix(".new").write_text(text)
            file.with_suffix(".new").rename(file)
        case 2:
            shutil.rmtree(file.parent)
            file.parent.mkdir()
            file.write_text(text)
        case _:
            file.write_text(text)


def test_contact_is_told_when_nothing_happens(folder: Path) -> None:
    """The age of the last contact stays small."""

    async def scenario(heard: Heard) -> None:
        await heard.names("db", "web")
        await heard.until(lambda: sum(isinstance(event, Contact) for event in heard.events) >= 9)

    watch_paths(scenario, folder, contact_s=0.02)
