"""Looking at files again: what is read, and what is not."""

import os
import time
from pathlib import Path

import pytest

from kproxy_ipt.sources.folder_contents import Circumstances, Contents, look, objects_of
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


_MOUNTS = """22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 22 0:40 / /srv rw shared:2 - nfs4 server:/export rw
91 90 0:41 / /srv/local\\040disk rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"), [("/etc", ""), ("/srv/a", "nfs4"), ("/srvx", ""), ("/srv/local disk/a", ""), ("/srv", "nfs4")]
)
def test_file_systems_of_other_machines_are_known(path: str, kind: str) -> None:
    """The innermost mount counts; what others change there is not told by this kernel."""
    assert remote_filesystem(path, _MOUNTS) == kind
