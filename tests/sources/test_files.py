"""Objects from files, folders and standard input."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy_ipt.errors import Severity, SourceError
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.sources.files import read_paths

Manifest = Callable[[str], Path]


def _service(name: str) -> str:
    """A Service in namespace `shop` as YAML."""
    metadata = f"{{name: {name}, namespace: shop}}"
    return f"apiVersion: v1\nkind: Service\nmetadata: {metadata}\nspec: {{ports: [{{port: 80}}]}}\n"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Write a Service named after the file, at a path below the folder of the test."""

    def write(path: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_service(file.name.partition(".")[0].strip("#~") or "odd"))
        return file

    return write


def _names(objects: Objects) -> list[str]:
    """The names of all Services, which must be all there is to say."""
    assert objects.findings == ()
    return [service.metadata.name for service in objects.services]


def test_file_is_read_whatever_its_name(manifest: Manifest) -> None:
    """A path that is named on purpose needs no suffix."""
    assert _names(read_paths([str(manifest("web"))])) == ["web"]


def test_several_paths_are_read_together(manifest: Manifest) -> None:
    """Objects of all paths come out sorted; a path named twice is read once."""
    paths = [str(manifest("b.yaml")), str(manifest("sub/a.json")), str(manifest("b.yaml"))]

    assert _names(read_paths(paths)) == ["a", "b"]


def test_folder_is_read_with_all_below_it(manifest: Manifest, tmp_path: Path) -> None:
    """Three suffixes count, at any depth."""
    for path in ("a.yaml", "one/b.yml", "one/two/c.json", "d.txt", "e", "f.yaml.bak"):
        manifest(path)

    assert _names(read_paths([str(tmp_path)])) == ["a", "b", "c"]


def test_hidden_files_and_leftovers_of_editors_are_passed_over(manifest: Manifest, tmp_path: Path) -> None:
    """What an editor leaves behind is an old state."""
    for path in ("a.yaml", ".b.yaml", "c.yaml~", ".d.yaml.swp", "#e.yaml#", ".git/f.yaml", "4913"):
        manifest(path)
    (tmp_path / ".#a.yaml").symlink_to("user@host.1234")

    assert _names(read_paths([str(tmp_path)])) == ["a"]


def test_mounted_config_map_is_read_once(manifest: Manifest, tmp_path: Path) -> None:
    """Kubernetes mounts files as links through `..data` into a folder with the time as its name."""
    manifest("..2026_11_30/a.yaml")
    (tmp_path / "..data").symlink_to("..2026_11_30")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")

    assert _names(read_paths([str(tmp_path)])) == ["a"]
    assert _names(read_paths([str(tmp_path / "..data")])) == ["a"]


def test_links_in_circles_and_second_links_are_passed_over(manifest: Manifest, tmp_path: Path) -> None:
    """Each file is read once by whatever links it is reached."""
    manifest("one/a.yaml")
    (tmp_path / "one/up").symlink_to("..")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "b.yaml").symlink_to("b.yaml")
    (tmp_path / "c.yaml").symlink_to("one/a.yaml")

    assert _names(read_paths([str(tmp_path)])) == ["a"]


def test_files_of_a_folder_are_read_in_order_of_their_paths(tmp_path: Path) -> None:
    """Of two definitions the one in the later path wins, on every machine."""
    for name, port in (("b.yaml", 82), ("a.yaml", 81), ("c/a.yaml", 83)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(_service("web").replace("80", str(port)))

    objects = read_paths([str(tmp_path)])

    assert [port.port for port in objects.services[0].spec.ports or ()] == [83]
    assert [finding.found for finding in objects.findings] == [
        f"one definition in {tmp_path}/a.yaml and one in {tmp_path}/b.yaml",
        f"one definition in {tmp_path}/b.yaml and one in {tmp_path}/c/a.yaml",
    ]


def test_standard_input_is_a_path(manifest: Manifest) -> None:
    """`-` reads standard input, beside other paths."""
    path = str(manifest("a.yaml"))

    assert _names(read_paths(["-", path], stdin=io.BytesIO(_service("b").encode()))) == ["a", "b"]


def test_broken_file_costs_no_other_file(manifest: Manifest, tmp_path: Path) -> None:
    """The finding names file and document."""
    manifest("a.yaml")
    (tmp_path / "b.yaml").write_text(f"{_service('b')}---\nx: [\n")

    objects = read_paths([str(tmp_path)])

    assert [service.metadata.name for service in objects.services] == ["a", "b"]
    assert [finding.object for finding in objects.findings] == [f"{tmp_path}/b.yaml, document 2"]


def test_file_cut_half_way_is_reported_and_read_anew_when_complete(tmp_path: Path) -> None:
    """Nothing of a broken reading is kept."""
    file = tmp_path / "dump.json"
    text = '{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "node1"}}]}'
    file.write_text(text[:60])
    cut = read_paths([str(file)])
    file.write_text(text)
    complete = read_paths([str(file)])

    assert [finding.severity for finding in cut.findings] == [Severity.REJECTED]
    assert cut.nodes == ()
    assert [node.metadata.name for node in complete.nodes] == ["node1"]


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_file_gives_a_warning(tmp_path: Path, text: str) -> None:
    """A file that is just being written may be empty for a moment: that should be seen."""
    file = tmp_path / "empty.yaml"
    file.write_text(text)

    (finding,) = read_paths([str(file)]).findings

    assert (finding.object, finding.severity) == (str(file), Severity.WARNING)


def test_missing_path_is_an_error(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(SourceError, match=r"nowhere\.yaml: No such file"):
        read_paths([str(tmp_path / "nowhere.yaml")])


@pytest.mark.parametrize("entries", [[], ["a.txt"], [".a.yaml"]])
def test_folder_without_manifests_is_an_error(manifest: Manifest, tmp_path: Path, entries: list[str]) -> None:
    """An empty folder is more likely a mistake than the wish to have no Services."""
    for entry in entries:
        manifest(entry)

    with pytest.raises(SourceError, match=f"{tmp_path}: a folder without any file"):
        read_paths([str(tmp_path)])


def test_dead_link_to_a_manifest_is_an_error(tmp_path: Path, manifest: Manifest) -> None:
    """Going on without it could take rules away that are wanted."""
    manifest("a.yaml")
    (tmp_path / "b.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "c.txt").symlink_to("nowhere.txt")

    with pytest.raises(SourceError, match=r"b\.yaml: No such file"):
        read_paths([str(tmp_path)])


def test_unreadable_path_is_an_error() -> None:
    """A file that exists but does not let itself be read is named (this one fails for root too)."""
    with pytest.raises(SourceError, match="/proc/self/mem: "):
        read_paths(["/proc/self/mem"])


def test_pipe_in_a_folder_is_passed_over(manifest: Manifest, tmp_path: Path) -> None:
    """Reading would wait for ever for somebody to write."""
    manifest("a.yaml")
    os.mkfifo(tmp_path / "b.yaml")

    assert _names(read_paths([str(tmp_path)])) == ["a"]


def test_no_paths_give_no_objects() -> None:
    """Nothing named, nothing read."""
    assert read_paths([]) == Objects()
