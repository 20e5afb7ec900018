"""The table of Services: conditions, search, pages."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.status.service_rows import ROWS_OF_A_PAGE, Query, ServiceCondition, ServicePage, ServiceTable
from kproxy_ipt.testing.desired import ApiObject
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.testing.watched_daemon import WatchedDaemon

WEB = service("web", cluster_ip="10.96.0.10", ports=[service_port(80, name="http", node_port=30080)])
API = service("api", namespace="shop", cluster_ip="10.96.0.11", ports=[service_port(53, protocol="UDP")])


def _page(daemon: WatchedDaemon, words: str = "", **query: object) -> ServicePage:
    condition, number = query.get("condition"), query.get("page", 1)
    assert condition is None or isinstance(condition, ServiceCondition)
    assert isinstance(number, int)
    return ServiceTable().page(daemon.scene, Query(words=words, condition=condition, page=number))


def _condition(*objects: ApiObject, written: bool = True) -> ServiceCondition:
    daemon = WatchedDaemon(*objects)
    if written:
        daemon.sync()
    (row,) = _page(daemon).rows
    return row.condition


def test_a_service_with_ready_endpoints_is_served() -> None:
    """All of its endpoints are used."""
    assert _condition(WEB, endpoint_slice(WEB, ["10.244.1.2", "10.244.1.3"])) is ServiceCondition.SERVED


def test_a_service_that_is_not_yet_in_the_kernel_waits() -> None:
    """What was not committed is said to be."""
    assert _condition(WEB, endpoint_slice(WEB), written=False) is ServiceCondition.WAITING


def test_a_service_with_one_endpoint_out_is_served_partly() -> None:
    """The table tells which Services are worth a look."""
    out = slice_endpoint("10.244.1.3", ready=False)

    assert _condition(WEB, endpoint_slice(WEB, ["10.244.1.2", out])) is ServiceCondition.PARTLY


@pytest.mark.parametrize("objects", [(WEB,), (WEB, endpoint_slice(WEB, [slice_endpoint("10.244.1.3", ready=False)]))])
def test_a_service_without_usable_endpoint_has_none(objects: tuple[ApiObject, ...]) -> None:
    """Whether it has none at all or none that is ready."""
    assert _condition(*objects) is ServiceCondition.NO_ENDPOINT


def test_a_headless_service_has_no_rules_and_says_why() -> None:
    """It is no fault that it has no endpoint in use."""
    daemon = WatchedDaemon(service("db", cluster_ip="None"))

    (row,) = _page(daemon).rows
    assert row.condition is ServiceCondition.NO_RULES
    assert "headless" in row.why


def test_a_service_of_another_family_has_no_rules() -> None:
    """A Service that is served by nobody here is told apart from one without endpoints."""
    daemon = WatchedDaemon(service("six", cluster_ip="fd00::1"))

    assert _page(daemon).rows[0].condition is ServiceCondition.NO_RULES


def test_a_service_that_the_kernel_refuses_is_set_aside() -> None:
    """With what the kernel said."""
    daemon = WatchedDaemon(WEB, endpoint_slice(WEB), API)
    daemon.machine.refused.add("10.244.1.2")
    daemon.sync()

    page = _page(daemon, condition=ServiceCondition.SET_ASIDE)
    assert [row.text for row in page.rows] == ["default/web"]
    assert "10.244.1.2" in page.rows[0].why


def test_endpoints_of_both_families_are_counted() -> None:
    """A pod with two addresses is two endpoints, as in the rules."""
    dual = service("web", cluster_ips=["10.96.0.10", "fd00::10"])
    slices = (endpoint_slice(dual, ["10.244.1.2"], name="a"), endpoint_slice(dual, ["fd00:1::2"], name="b"))
    daemon = WatchedDaemon(dual, *slices, families=(Family.IPV4, Family.IPV6))

    (row,) = _page(daemon).rows
    assert (row.used, row.known) == (2, 2)


@pytest.mark.parametrize(
    "words",
    ["web", "DEFAULT/w", "10.96.0.10", "30080", "http clusterip", "10.244.1.2", "10.244.1.2 nonsense"],
)
def test_words_find_a_service(words: str) -> None:
    """By name, address, port and type; an address of an endpoint is enough by itself."""
    daemon = WatchedDaemon(WEB, endpoint_slice(WEB, ["10.244.1.2"]), API)

    assert [row.text for row in _page(daemon, words).rows] == ["default/web"]


def test_all_words_must_fit() -> None:
    """More words find less."""
    daemon = WatchedDaemon(WEB, API)

    assert _page(daemon, "web udp").rows == ()
    assert _page(daemon, "web udp").services == 2


def test_many_services_are_pages_in_the_order_of_names() -> None:
    """A page beyond the last one is the last one."""
    numbers = range(2 * ROWS_OF_A_PAGE + 1)
    daemon = WatchedDaemon(*(service(f"web-{number:04}", cluster_ip="10.96.0.1") for number in numbers))

    last = _page(daemon, page=99)
    assert (last.page, last.pages, last.found) == (3, 3, len(numbers))
    assert [row.name for row in last.rows] == ["web-0400"]
    assert [row.name for row in _page(daemon, page=2).rows[:2]] == ["web-0200", "web-0201"]


def test_kept_rows_follow_changes() -> None:
    """A table that is asked again and again says the same as a new one."""
    table, daemon = ServiceTable(), WatchedDaemon(WEB, API, endpoint_slice(WEB))
    table.page(daemon.scene, Query())
    daemon.put(endpoint_slice(WEB, ["10.244.1.2", "10.244.1.3"]), service("new"))

    assert table.page(daemon.scene, Query()) == ServiceTable().page(daemon.scene, Query())
    assert next(row.used for row in table.page(daemon.scene, Query()).rows if row.name == "web") == 2
