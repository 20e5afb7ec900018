"""What a daemon counts for one family, through syncs, ends of rules and looks."""

from collections.abc import Mapping

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.names import endpoint_chain_name, service_suffix
from kproxy_ipt.ruleset.counted import CountedTables, Way
from kproxy_ipt.ruleset.matches import StatisticNth
from kproxy_ipt.state.model import Snapshot
from kproxy_ipt.state.tracker import ServiceName, States
from kproxy_ipt.stats.ended_rule import EndedRule
from kproxy_ipt.stats.family_traffic import MOST_GONE, FamilyTraffic
from kproxy_ipt.stats.model import ServiceTraffic, Skew
from kproxy_ipt.testing.desired import snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service

_WEB = ("default", "web")


def _changes(*pods: str, affinity_timeout_s: int | None = None) -> Mapping[ServiceName, States]:
    web = service(affinity_timeout_s=affinity_timeout_s)
    snapshot: Snapshot = snapshot_of(web, endpoint_slice(web, pods) if pods else endpoint_slice(web, []))
    return {_WEB: tuple(snapshot.services.values())}


def _chain(pod: str) -> str:
    return endpoint_chain_name("default/web", "tcp", f"{pod}:80")


def _counted(**pods: int) -> CountedTables:
    counts = {_chain(name.replace("_", ".").removeprefix("p")): count for name, count in pods.items()}
    chances = [*((StatisticNth(left),) for left in range(len(counts), 1, -1)), ()]
    row = tuple(Way(chain, count, one) for (chain, count), one in zip(counts.items(), chances, strict=True))
    return CountedTables(endpoints=counts, choices={f"KUBE-SVC-{service_suffix('default/web', 'tcp')}": row})


class _Daemon:
    """Syncs and looks as the daemon does them."""

    def __init__(self, *pods: str) -> None:
        self.traffic = FamilyTraffic(Family.IPV4)
        self.sync(_changes(*pods))
        self.traffic.start(CountedTables())

    def sync(self, changes: Mapping[ServiceName, States], *ended: tuple[str, int]) -> None:
        self.traffic.expect(changes)
        for pod, packets in ended:
            self.traffic.ended(EndedRule(Family.IPV4, _chain(pod), "", packets))
        self.traffic.settle(changes)

    def look(self, **pods: int) -> ServiceTraffic:
        with self.traffic.ledger.look() as look:
            self.traffic.observe(_counted(**pods), look)
        (found,) = self.traffic.services()
        return found


def _by_endpoint(found: ServiceTraffic) -> dict[str, tuple[int, bool]]:
    return {one.endpoint: (one.connections, one.is_gone) for one in found.endpoints}


def test_endpoint_that_leaves_keeps_its_count() -> None:
    """Up to the last connection, and it is told apart from those that rules lead to."""
    daemon = _Daemon("10.0.0.1", "10.0.0.2")
    daemon.look(p10_0_0_1=10, p10_0_0_2=12)
    daemon.sync(_changes("10.0.0.1"), ("10.0.0.2", 15))
    found = daemon.look(p10_0_0_1=20)

    assert {"10.0.0.1:80": (20, False), "10.0.0.2:80": (15, True)} == _by_endpoint(found)
    assert (35, 1.0) == (found.connections, found.endpoints[0].share)


def test_endpoint_that_returns_goes_on_counting() -> None:
    """Its new chain begins at 0, its sum does not."""
    daemon = _Daemon("10.0.0.1", "10.0.0.2")
    daemon.sync(_changes("10.0.0.1"), ("10.0.0.2", 15))
    daemon.sync(_changes("10.0.0.1", "10.0.0.2"))
    found = daemon.look(p10_0_0_1=20, p10_0_0_2=3)

    assert {"10.0.0.1:80": (20, False), "10.0.0.2:80": (18, False)} == _by_endpoint(found)


def test_endpoint_that_rules_still_lead_to_is_not_gone() -> None:
    """A Service that is set aside keeps its rules, whatever is wanted; they go on being counted."""
    daemon = _Daemon("10.0.0.1", "10.0.0.2")
    daemon.look(p10_0_0_1=10, p10_0_0_2=12)
    daemon.sync(_changes("10.0.0.1"))
    found = daemon.look(p10_0_0_1=20, p10_0_0_2=25)

    assert {"10.0.0.1:80": (20, False), "10.0.0.2:80": (25, False)} == _by_endpoint(found)
    assert [0.5, 0.5] == [one.share for one in found.endpoints]


def test_many_that_left_become_one_sum() -> None:
    """The total of the service port stays, its parts are bounded."""
    daemon = _Daemon("10.0.0.1")
    for number in range(MOST_GONE + 30):
        daemon.sync(_changes("10.0.0.1", f"10.0.1.{number}"))
        daemon.sync(_changes("10.0.0.1"), (f"10.0.1.{number}", 2))
    found = daemon.look(p10_0_0_1=1)

    assert 2 * (MOST_GONE + 30) + 1 == found.connections
    assert MOST_GONE + 1 == len(found.endpoints)
    assert MOST_GONE + 4 >= len(daemon.traffic.ledger.sums)


def test_deleted_service_is_forgotten() -> None:
    """Nobody can ask for it any more."""
    daemon = _Daemon("10.0.0.1", "10.0.0.2")
    daemon.look(p10_0_0_1=10, p10_0_0_2=12)
    daemon.sync(_changes("10.0.0.1"), ("10.0.0.2", 15))
    daemon.sync({_WEB: ()}, ("10.0.0.1", 11))

    assert {} == dict(daemon.traffic.ledger.sums)
    assert () == daemon.traffic.services()


def test_refusals_are_known_by_their_comments() -> None:
    """Of service ports that exist; both ways to hear of them agree."""
    daemon = _Daemon()
    seen = CountedTables(refusals={"default/web has no endpoints": 4, "other/web has no endpoints": 9}, invalid=2)
    with daemon.traffic.ledger.look() as look:
        daemon.traffic.observe(seen, look)
    daemon.traffic.ended(EndedRule(Family.IPV4, "", "default/web has no endpoints", 6))
    daemon.traffic.ended(EndedRule(Family.IPV4, "", "default/web has no local endpoints", 1))
    daemon.traffic.ended(EndedRule(Family.IPV4, "", "kubernetes forwarding rules", 1))
    (found,) = daemon.traffic.services()

    assert (6, 1, 2) == (found.rejected, found.dropped, daemon.traffic.invalid_dropped)


@pytest.mark.parametrize(("affinity_timeout_s", "skew"), [(None, Skew.UNEXPLAINED), (600, Skew.AFFINITY)])
def test_skew_is_judged_by_what_the_choice_counted(affinity_timeout_s: int | None, skew: Skew) -> None:
    """As for rules that are read."""
    daemon = _Daemon()
    daemon.sync(_changes("10.0.0.1", "10.0.0.2", affinity_timeout_s=affinity_timeout_s))

    assert skew is daemon.look(p10_0_0_1=100, p10_0_0_2=10).skew
    assert Skew.FITS is daemon.look(p10_0_0_1=100, p10_0_0_2=110).skew


def test_some_services_can_be_asked_for_alone() -> None:
    """What is told of them is the same; of unknown ones nothing is."""
    daemon = _Daemon("10.0.0.1", "10.0.0.2")
    whole = (daemon.look(p10_0_0_1=10, p10_0_0_2=12),)

    assert whole == daemon.traffic.services({_WEB})
    assert () == daemon.traffic.services({("default", "other")})
