"""The daemon needs no disk: it writes no state and no temporary file."""

from pathlib import Path

import pytest

from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.fault_lab import OWN_MOUNTS, FaultLab
from kproxy_ipt.testing.promptness import ATTEMPTS

pytestmark = pytest.mark.kernel

_SCRIPTS = {
    # The lock of the legacy programs is in /run, which is a file system of its own on every machine.
    "read only": "mount --rbind /run /run && mount -o remount,bind,ro /",
    "full": 'mount -t tmpfs -o size=4k full "$TMPDIR" && { head -c 9000 /dev/zero > "$TMPDIR/filler" || true; }',
}


def _prefix(script: str) -> tuple[str, ...]:
    return (*OWN_MOUNTS, "sh", "-c", f'{script}; exec "$@"', "sh")


@pytest.mark.parametrize("how", _SCRIPTS)
def test_no_disk_is_needed(backend: BackendWish, tmp_path: Path, how: str) -> None:
    """With a root that is read only, or no room for temporary files, it starts, follows changes and restarts."""
    with FaultLab(backend, tmp_path, prefix=_prefix(_SCRIPTS[how])) as node:
        mounts = Path(f"/proc/{node.daemon.process_id}/mounts").read_text(encoding="utf-8").splitlines()
        changed = node.judge("changes", node.change, bound_s=3.0, attempts=ATTEMPTS)
        restarted = node.judge("restart", node.restart, bound_s=5.0, attempts=ATTEMPTS)

    points = {line.split()[1]: line.split()[3].split(",") for line in mounts}
    assert ("ro" in points["/"]) == (how == "read only")
    assert changed.is_harmless, changed
    assert restarted.is_harmless, restarted
