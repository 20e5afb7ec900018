"""The own Node over time: what rules follow, what blocks them, and what is said."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.node_watch import REMIND_S, NodeWatch
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.objects import node


class Warnings(SilentLog):
    """Keeps what is warned of."""

    def __init__(self) -> None:
        self.odd: list[str] = []

    def warning(self, event: str, **fields: object) -> None:  # noqa: ARG002 - the sentence is enough
        """Keep the sentence."""
        self.odd.append(str(fields.get("odd", fields.get("note"))))


class Watched:
    """A node watch with its clock and its warnings."""

    def __init__(self, config: Config | None = None) -> None:
        self.clock, self.log = ManualClock(), Warnings()
        self.watch = NodeWatch("node1", config or Config(), self.log, self.clock)


@pytest.fixture
def watched() -> Watched:
    """A node of which nothing is known yet."""
    return Watched()


def test_rules_follow_zone_addresses_and_ranges_alone(watched: Watched) -> None:
    """A heartbeat or a label of somebody else is no news."""
    deliveries = [
        node(),
        node(labels={"a": "b"}),
        node(zone="z1"),
        node(zone="z1", addresses=["192.0.2.11"]),
        node(zone="z1", addresses=["192.0.2.11"], pod_cidrs=["10.244.7.0/24"]),
    ]

    assert [watched.watch.seen(one) for one in deliveries] == [True, False, True, True, True]


def test_deleted_node_counts_as_it_was_last_seen(watched: Watched) -> None:
    """Rules do not change because somebody creates the Node anew."""
    watched.watch.seen(node(zone="z1"))
    facts = watched.watch.facts

    assert watched.watch.seen(None) is False
    assert watched.watch.facts == facts
    assert "the Node was deleted" in watched.log.odd[0]


def test_node_that_never_was_is_said_with_the_likely_reason(watched: Watched) -> None:
    """A wrong name is what it mostly is."""
    watched.watch.seen(None)

    assert "--hostname-override" in watched.log.odd[0]
    assert watched.watch.blocked == ""


def test_oddity_is_said_once_a_minute(watched: Watched) -> None:
    """Often enough to be found, not so often that it hides the rest."""
    for seconds in (0.0, REMIND_S - 1.0, 1.0, 1.0):
        watched.clock.advance(seconds)
        watched.watch.remind()

    assert len(watched.log.odd) == 2


def test_good_node_is_not_worth_a_word(watched: Watched) -> None:
    """Nothing is odd about it."""
    watched.watch.seen(node())
    watched.watch.remind()

    assert watched.log.odd == []


def test_mode_node_cidr_waits_for_the_ranges() -> None:
    """Without them local traffic would be masqueraded; what is waited for is said."""
    watched = Watched(Config(detect_local_mode=DetectLocalMode.NODE_CIDR))
    watched.watch.seen(node(pod_cidrs=[]))
    watched.watch.remind()
    blocked = watched.watch.blocked
    watched.watch.seen(node())

    assert "spec.podCIDRs of Node node1" in blocked
    assert "nothing is written until" in watched.log.odd[0]
    assert watched.watch.blocked == ""


def test_other_configuration_counts_at_once() -> None:
    """The mode may change while the daemon runs."""
    watched = Watched()
    watched.watch.config = Config(detect_local_mode=DetectLocalMode.NODE_CIDR)

    assert watched.watch.blocked != ""


def test_open_node_ports_are_said_once(watched: Watched) -> None:
    """Whoever leaves nodePortAddresses out opens every address of the node."""
    watched.watch.seen(node())
    for _ in range(2):
        watched.watch.tell_ranges(frozenset(Family))

    assert sum("nodePortAddresses is unset" in note for note in watched.log.odd) == 1
