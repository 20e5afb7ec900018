"""A running daemon and a folder of manifests whose files go wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, run_to_end, wait_until
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.object_folder import ObjectFolder, manifest
from kproxy_ipt.testing.objects import endpoint_slice, service

pytestmark = pytest.mark.kernel

_WEB = service("web")


@pytest.fixture
def folder(tmp_path: Path) -> ObjectFolder:
    """A Node and a Service with one endpoint."""
    return ObjectFolder(tmp_path / "objects", own_node(), _WEB, endpoint_slice(_WEB))


@pytest.fixture
def daemon(target: Target, folder: ObjectFolder) -> Iterator[DaemonProcess]:
    """A daemon in step with the folder."""
    with DaemonProcess(str(target.netns), *lab_arguments(folder.path, "nft")) as made:
        made.wait_in_step()
        yield made


@pytest.fixture
def has(look: Callable[..., str]) -> Callable[[str], bool]:
    """Whether the kernel has a rule with that text."""
    return lambda text: text in look("iptables-nft-save")


def test_file_that_is_cut_off_keeps_what_it_said(
    folder: ObjectFolder, daemon: DaemonProcess, has: Callable[[str], bool]
) -> None:
    """Half a file is never acted on: the old rules stay, the file is named, its whole form counts."""
    changed = manifest(endpoint_slice(_WEB, ["10.244.1.88"]))
    name = folder.file(endpoint_slice(_WEB)).name
    folder.write(name, changed[: len(changed) // 2])
    wait_until(lambda: any(name in line for line in daemon.lines), "the file is named")
    kept = has("10.244.1.2:80")
    folder.write(name, changed)

    wait_until(lambda: has("10.244.1.88:80"), "the whole file")
    assert kept


@pytest.mark.parametrize("text", [b"{}", b"\x00\xff", b"kind: Service\nspec: [", b"- 1\n- null\n", b'{"kind": null}'])
def test_file_of_nonsense_costs_nothing_else(
    folder: ObjectFolder, daemon: DaemonProcess, has: Callable[[str], bool], text: bytes
) -> None:
    """A file that holds anything but objects is told at most; other files go on to count."""
    folder.write("nonsense.yaml", text)
    other = service("other", cluster_ip="10.96.0.55")
    folder.put(other, endpoint_slice(other, ["10.244.1.55"]))

    wait_until(lambda: has("10.244.1.55:80"), "the other file")
    assert has("10.244.1.2:80")
    assert 200 == daemon.get("/livez").status


def test_folder_that_vanishes_and_returns_costs_no_rule(
    folder: ObjectFolder, daemon: DaemonProcess, has: Callable[[str], bool]
) -> None:
    """While the folder is away rules stay; what it holds when it is back counts."""
    away = folder.path.with_name("away")
    folder.path.rename(away)
    daemon.wait_for_log("source")
    kept = has("10.244.1.2:80")
    away.rename(folder.path)
    folder.put(endpoint_slice(_WEB, ["10.244.1.88"]))

    wait_until(lambda: has("10.244.1.88:80"), "the folder is back")
    assert kept


def test_standard_input_cannot_be_watched(target: Target) -> None:
    """`--from -` is refused with a reason, as it can be read once only."""
    ended = run_to_end("--from", "-", "--netns", str(target.netns), "--backend", "nft")

    assert ended.returncode not in (0, 1)
    assert "standard input" in ended.stderr
