"""The time of day plays no part: rules follow a clock that never goes back."""

import time
from pathlib import Path

import pytest

from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.fault_lab import FaultLab
from kproxy_ipt.testing.promptness import ATTEMPTS

pytestmark = pytest.mark.kernel

_DAY_S = 86400
_SITE = """
import time
_time, _path = time.time, {path!r}
time.time = lambda: _time() + float(open(_path).read())
"""


def test_clock_that_jumps_delays_nothing(backend: BackendWish, tmp_path: Path) -> None:
    """A day ahead, then two back: changes and repairs are written as fast as ever, and health stays good."""
    offset = tmp_path / "offset"
    offset.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(_SITE.format(path=str(offset)))
    (tmp_path / "lab").mkdir()

    with FaultLab(backend, tmp_path / "lab", environment={"PYTHONPATH": str(tmp_path)}) as node:
        outcomes = []
        for jump_s in (_DAY_S, -_DAY_S):
            offset.write_text(str(jump_s))
            outcomes.append(node.judge("jump", node.change, bound_s=3.0, attempts=ATTEMPTS))
            outcomes.append(
                node.judge("flush", lambda: _flush(node), bound_s=5.0, spares_traffic=False, attempts=ATTEMPTS)
            )
            synced_s = node.daemon.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds")
            assert 200 == node.daemon.get("/healthz").status

    assert [] == [outcome for outcome in outcomes if not outcome.is_harmless]
    assert synced_s < time.time() - _DAY_S / 2


def _flush(node: FaultLab) -> None:
    node.tables.run("nat", "-F", "KUBE-SERVICES")
    node.change()
