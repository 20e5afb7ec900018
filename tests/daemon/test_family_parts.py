"""What belongs to one family: when options make it sync."""

import asyncio
from collections.abc import Callable

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.drift import no_window
from kproxy_ipt.daemon.family import ProcessNote
from kproxy_ipt.daemon.family_loop import Clocks
from kproxy_ipt.daemon.family_parts import FamilyParts
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.health_ports import HealthPorts
from kproxy_ipt.daemon.kernel_thread import KernelThread
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.daemon.schedule import SyncSchedule
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.tracker import StateTracker
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.fake_machine import FakeMachine

V4 = Family.IPV4


def _options(node: NodeFacts) -> RuleOptions:
    config = Config(iptables=IptablesConfig(localhost_node_ports=False))
    return rule_options(config, node, MachineFacts(), V4, endpoint_count=0)


OPTIONS = _options(NodeFacts(name="node1"))
ENTRIES = entry_options(OPTIONS, ["192.0.2.1"])


def _parts(machine: FakeMachine, thread: KernelThread) -> FamilyParts:
    clock, log = ManualClock(), SilentLog()
    health = ProxyHealth([V4], sync_period_s=5, clock=clock, wall_clock_ns=clock.wall_ns)
    return FamilyParts(
        V4,
        machine.opened(),
        ProcessNote(),
        thread,
        StateTracker(V4, "node1"),
        SyncSchedule(min_gap_s=1.0, retry_cap_s=30.0),
        health=health,
        health_ports=HealthPorts(health.is_healthy, node_name="node1", netns=None, report=lambda _: None, log=log),
        metrics=Metrics(),
        log=log,
        clocks=Clocks(clock, lambda: clock.wall_ns() / 1e9),
        window=no_window,
    )


@pytest.mark.parametrize(
    ("change", "saves", "is_due"),
    [
        (lambda parts: parts.set_options(OPTIONS, ENTRIES, "the same"), 1, False),
        (lambda parts: parts.set_options(OPTIONS, entry_options(OPTIONS, ["192.0.2.2"]), "addresses"), 1, True),
        (lambda parts: parts.set_options(_options(NodeFacts(name="node1", zone="z")), ENTRIES, "the Node"), 2, True),
    ],
)
def test_options_that_change_ask_for_what_is_needed(
    change: Callable[[FamilyParts], None], saves: int, *, is_due: bool
) -> None:
    """The same options ask for nothing, addresses alone for no listing, and what rules depend on for a comparison."""

    async def run() -> tuple[int, bool]:
        machine, thread = FakeMachine(), KernelThread(None, "kernel-test")
        parts = _parts(machine, thread)
        parts.set_options(OPTIONS, ENTRIES, "first sync")
        await parts.loop.sync()
        change(parts)
        due = parts.loop.schedule.due_s() is not None
        await parts.loop.sync()
        thread.close()
        return machine.saves, due

    assert asyncio.run(run()) == (saves, is_due)
