"""When the node calls itself healthy, and how it says so."""

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.answers import Request
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.health import ProxyHealth, is_eligible, rfc3339
from kproxy_ipt.daemon.health_pages import HealthPages
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.objects.events import Contact, Kind, Trouble
from kproxy_ipt.objects.model import Node, NodeSpec, ObjectMeta, Taint
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.objects import node

START = "2023-11-14T22:13:20Z"
V4, V6 = Family.IPV4, Family.IPV6


class Node1:
    """The health of a node with both families and a limit of 10 seconds, its clock, and its pages."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.health = ProxyHealth(Family, sync_period_s=5, clock=self.clock, wall_clock_ns=self.clock.wall_ns)
        self.api = ApiStatus(Kind, clock=self.clock, wall_clock_ns=self.clock.wall_ns)
        self.metrics = Metrics()
        self.pages = HealthPages(self.health, self.metrics, self.api)
        self.health.node_seen(node())

    def ask(self, path: str = "/healthz") -> int:
        """Status of the answer."""
        return self.pages.respond(Request(path=path)).status

    def text(self, path: str = "/healthz") -> str:
        """Body of the answer."""
        return self.pages.respond(Request(path=path)).body.decode()

    def healthy(self) -> list[bool]:
        """IPv4, IPv6."""
        return [family.healthy for family in self.health.judge().families.values()]

    def both(self, step: str) -> None:
        """Let something happen to both families."""
        for family in Family:
            getattr(self.health, step)(family)


@pytest.fixture
def here() -> Node1:
    """A node whose process just started."""
    return Node1()


def test_before_anything_the_answer_is_positive_and_without_status(here: Node1) -> None:
    """A process that just started is healthy; no family has reported yet."""
    expected = f'{{"lastUpdated":"{START}","currentTime":"{START}","nodeEligible":true,"healthy":true}}'

    assert (200, expected) == (here.ask(), here.text())


def test_idle_families_stay_healthy(here: Node1) -> None:
    """Without a change the age of the last sync means nothing, and lastUpdated is now."""
    here.both("updated")
    here.clock.advance(25)

    expected = (
        '{"lastUpdated":"2023-11-14T22:13:45Z","currentTime":"2023-11-14T22:13:45Z","nodeEligible":true,"healthy":true,'
        f'"status":{{"IPv4":{{"lastUpdated":"{START}","healthy":true}},"IPv6":{{"lastUpdated":"{START}",'
        '"healthy":true}}}'
    )
    assert (200, expected) == (here.ask(), here.text())


def test_a_change_that_waits_too_long_makes_its_family_unhealthy(here: Node1) -> None:
    """IPv4 waits for 25 seconds: 503, IPv6 stays healthy, lastUpdated is the last real update."""
    here.both("updated")
    here.health.queued(V4)
    here.clock.advance(25)

    assert here.ask() == here.ask("/livez") == 503
    assert here.healthy() == [False, True]
    assert here.text().startswith(f'{{"lastUpdated":"{START}","currentTime":"2023-11-14T22:13:45Z",')


def test_one_unhealthy_family_is_not_healed_by_the_other(here: Node1) -> None:
    """IPv6 waits too long; an update of IPv4 changes nothing, one of IPv6 does."""
    here.both("updated")
    here.health.queued(V6)
    here.clock.advance(25)
    answers = [here.ask()]
    for family in (V4, V6):
        here.health.updated(family)
        answers.append(here.ask())

    assert answers == [503, 503, 200]


def test_both_families_can_be_unhealthy(here: Node1) -> None:
    """Both wait for 25 seconds."""
    here.both("updated")
    here.both("queued")
    here.clock.advance(25)

    assert ([False, False], 503) == (here.healthy(), here.ask())


@pytest.mark.parametrize(("age_s", "status"), [(5, 200), (9.999, 200), (10, 503)])
def test_the_limit_is_twice_the_sync_period_and_belongs_to_the_unhealthy(
    here: Node1, age_s: float, status: int
) -> None:
    """A change may wait for less than 10 seconds."""
    here.both("updated")
    here.health.queued(V4)
    here.clock.advance(age_s)

    assert status == here.ask()


def test_later_requests_do_not_make_the_oldest_change_younger(here: Node1) -> None:
    """The age is that of the first change that waits."""
    here.both("updated")
    for _ in range(3):
        here.health.queued(V4)
        here.clock.advance(4)

    assert {V4: 12.0, V6: 0.0} == here.health.oldest_unwritten_s()


def test_first_sync_that_never_succeeds_becomes_unhealthy(here: Node1) -> None:
    """Nothing was requested, the only attempt failed: the node is not programmed and says so."""
    here.both("sync_began")
    for family in Family:
        here.health.failed(family, "exit status 4")
    here.clock.advance(10)

    assert here.ask() == 503
    assert '"IPv4":{"lastUpdated":"0001-01-01T00:00:00Z","healthy":false}' in here.text()


def test_first_sync_that_never_comes_becomes_unhealthy(here: Node1) -> None:
    """Lists that never arrive leave the node unprogrammed."""
    here.clock.advance(10)

    assert (503, [False, False]) == (here.ask(), here.healthy())


def test_failures_are_bad_after_the_limit_and_good_after_one_success(here: Node1) -> None:
    """Attempts that fail do not reset the age; the first success does."""
    here.both("updated")
    here.health.queued(V6)
    answers = []
    for _ in range(3):
        here.health.sync_began(V6)
        here.clock.advance(4)
        here.health.failed(V6, "exit status 4")
        answers.append(here.ask())
    here.health.sync_began(V6)
    here.health.updated(V6)

    assert [200, 200, 503, 200] == [*answers, here.ask()]


def test_failed_sync_without_a_request_counts_from_its_begin(here: Node1) -> None:
    """A repair that fails leaves something wrong in the kernel, though nothing was queued."""
    here.both("updated")
    here.health.sync_began(V4)
    here.clock.advance(7)
    here.health.failed(V4, "exit status 4")
    here.clock.advance(3)

    assert (503, 10.0) == (here.ask(), here.health.oldest_unwritten_s()[V4])


def test_change_during_a_sync_still_waits_when_it_ends(here: Node1) -> None:
    """The sync that succeeds did not see it."""
    here.both("updated")
    here.health.queued(V4)
    here.health.sync_began(V4)
    here.clock.advance(6)
    here.health.queued(V4)
    here.clock.advance(1)
    here.health.updated(V4)

    assert here.health.oldest_unwritten_s()[V4] == 1.0


@pytest.mark.parametrize(
    ("seen", "eligible"),
    [
        (None, False),
        (node(), True),
        (Node(ObjectMeta("n1"), NodeSpec(taints=(Taint("other"),))), True),
        (Node(ObjectMeta("n1"), NodeSpec(taints=(Taint("other"), Taint("ToBeDeletedByClusterAutoscaler")))), False),
        (Node(ObjectMeta("n1", deletion_timestamp="2024-01-01T00:00:00Z")), False),
    ],
)
def test_node_that_goes_away_is_not_eligible(seen: Node | None, eligible: bool) -> None:  # noqa: FBT001
    """Never seen, marked by the autoscaler, or being deleted: balancers should not send."""
    assert eligible == is_eligible(seen)


def test_ineligible_node_is_unfit_for_balancers_but_alive(here: Node1) -> None:
    """/healthz says 503 with healthy true, /livez says 200 and nothing of the node."""
    here.health.node_seen(Node(ObjectMeta("n1", deletion_timestamp="2024-01-01T00:00:00Z")))

    assert (503, 200) == (here.ask("/healthz"), here.ask("/livez"))
    assert '"nodeEligible":false,"healthy":true' in here.text("/healthz")
    assert "nodeEligible" not in here.text("/livez")


def test_removed_node_keeps_its_last_state(here: Node1) -> None:
    """What was seen last counts on when the Node object is gone."""
    here.health.node_seen(None)

    assert here.ask() == 200


def test_silent_api_is_told_but_does_not_make_the_node_unhealthy(here: Node1) -> None:
    """Balancers must not drop all nodes when the control plane is down."""
    here.both("updated")
    here.api.observe(Contact(Kind.SERVICES))
    here.clock.advance(400)
    here.api.observe(Trouble(Kind.SERVICES, "connection refused", retry_in_s=1))
    answer = here.pages.respond(Request(path="/healthz", query={"verbose": ""}))

    assert answer.status == 200
    assert msgspec.json.decode(answer.body)["api"]["services"] == {
        "lastContact": START,
        "silentSeconds": 400.0,
        "silent": True,
        "lastTrouble": "2023-11-14T22:20:00Z",
        "lastError": "connection refused",
    }


def test_verbose_tells_the_last_events_of_each_family(here: Node1) -> None:
    """Last success, last request, last failure with its text, and the age of what waits."""
    here.both("updated")
    here.clock.advance(1)
    here.health.queued(V6)
    here.clock.advance(1.5)
    here.health.failed(V6, "line 3 failed")
    answer = here.pages.respond(Request(path="/healthz", query={"verbose": "1"}))

    assert msgspec.json.decode(answer.body)["families"]["IPv6"] == {
        "lastSuccess": START,
        "lastQueued": "2023-11-14T22:13:21Z",
        "lastFailure": "2023-11-14T22:13:22.5Z",
        "lastError": "line 3 failed",
        "oldestUnwrittenSeconds": 1.5,
        "limitSeconds": 10.0,
    }


def test_every_answer_is_counted(here: Node1) -> None:
    """The counters of kube-proxy, by status."""
    here.ask("/healthz")
    here.clock.advance(10)
    here.ask("/healthz")
    here.ask("/livez")
    text = here.metrics.text().decode()

    assert 'kubeproxy_proxy_healthz_total{code="200"} 1.0' in text
    assert 'kubeproxy_proxy_healthz_total{code="503"} 1.0' in text
    assert 'kubeproxy_proxy_livez_total{code="503"} 1.0' in text


@pytest.mark.parametrize("path", ["/", "/healthz/", "/livez/x", "/metrics", "/readyz"])
def test_other_paths_of_the_health_server_do_not_exist(here: Node1, path: str) -> None:
    """There are two pages."""
    assert here.ask(path) == 404


@pytest.mark.parametrize(
    ("time_ns", "expected"),
    [
        (None, "0001-01-01T00:00:00Z"),
        (0, "1970-01-01T00:00:00Z"),
        (1_700_000_000_000_000_001, "2023-11-14T22:13:20.000000001Z"),
        (1_700_000_000_120_000_000, "2023-11-14T22:13:20.12Z"),
    ],
)
def test_times_are_written_as_go_does(time_ns: int | None, expected: str) -> None:
    """Nanoseconds without trailing zeros."""
    assert expected == rfc3339(time_ns)
