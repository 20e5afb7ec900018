"""Limits of memory: groups of both versions as files, and address space as the kernel has it."""

import resource
import subprocess
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.testing.memory_limits import _VERSION_1, _VERSION_2, MemoryGroup, _Groups, address_space


@pytest.mark.parametrize(("enabled", "expected"), [("cpu memory pids", True), ("cpu pids", False)])
def test_version_2_limits_memory_where_the_controller_is_on(tmp_path: Path, enabled: str, *, expected: bool) -> None:
    """Groups can be made anywhere; without `+memory` they have no limit."""
    groups = msgspec.structs.replace(_VERSION_2, root=tmp_path)
    assert not groups.can_be_made
    (tmp_path / "cgroup.subtree_control").write_text(f"{enabled}\n")

    assert groups.can_be_made == expected


@pytest.mark.parametrize(
    ("groups", "shortages"),
    [(_VERSION_1, "{}\n"), (_VERSION_2, "low 0\nhigh 9\nmax {}\noom 9\n")],
    ids=["version 1", "version 2"],
)
def test_shortage_is_read_from_its_count(tmp_path: Path, groups: _Groups, shortages: str) -> None:
    """Refused pages count, nothing else does; the limit is written and taken away in the words of the version."""
    group = MemoryGroup(msgspec.structs.replace(groups, root=tmp_path), "made", 4096)
    folder, seen = tmp_path / "made", []
    limits = [(folder / groups.limit).read_text()]
    for count in (0, 3):
        (folder / groups.shortages).write_text(shortages.format(count))
        seen.append(group.was_short)
    group.lift()
    limits.append((folder / groups.limit).read_text())

    assert [False, True] == seen
    assert ["4096", groups.unlimited] == limits


def test_address_space_is_what_it_was_afterwards() -> None:
    """The limit counts for the process meanwhile; its hard limit never moves."""
    with subprocess.Popen(["sleep", "60"]) as process:
        before = resource.prlimit(process.pid, resource.RLIMIT_AS)
        with address_space(process.pid, 1 << 30):
            meanwhile = resource.prlimit(process.pid, resource.RLIMIT_AS)
        after = resource.prlimit(process.pid, resource.RLIMIT_AS)
        process.kill()

    assert (1 << 30, before[1]) == meanwhile
    assert before == after
