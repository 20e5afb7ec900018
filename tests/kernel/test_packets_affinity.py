"""Session affinity with real packets: how long, for whom, and how far it holds."""

import time
from collections.abc import Callable

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.lab_objects import cluster_ip, endpoint, endpoints, stranger
from kproxy_ipt.testing.objects import service, service_port
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
_CLIENTS = 80
"""Below 100, the number of addresses that the kernel keeps in each list; one of three is not chosen once in 10^14."""


def _choices(lab: Lab, family: Family, address: str, port: int = 80) -> dict[str, str]:
    """Let each client connect once; who answered, by source address of the client."""
    sources = [stranger(family, number) for number in range(1, _CLIENTS + 1)]
    traffic = lab.client.send(address, port, count=_CLIENTS, sources=sources, timeout_s=3.0)
    assert traffic.outcomes == {Outcome.ANSWERED: _CLIENTS}
    return {source: each.name for source, each in zip(sources, traffic.exchanges, strict=True)}


def test_every_client_stays_with_its_endpoint(lab: Lab, sync: Sync, family: Family) -> None:
    """Of 80 clients each meets the same endpoint five times, and together they use all three endpoints."""
    web = service(cluster_ip=cluster_ip(family), affinity_timeout_s=10800)
    sync(web, endpoints(web, family, lab.pod("podB"), lab.pod("podC"), lab.pod("podD")))

    first, *others = (_choices(lab, family, cluster_ip(family)) for _ in range(5))

    assert others == [first] * 4
    assert set(first.values()) == {"podB", "podC", "podD"}


def test_affinity_ends_after_its_timeout_in_seconds(lab: Lab, sync: Sync, family: Family) -> None:
    """With a timeout of 1 s clients are balanced anew after 1.2 s; with the default of three hours none is."""
    short = service("short", cluster_ip=cluster_ip(family), affinity_timeout_s=1)
    long = service("long", cluster_ip=cluster_ip(family, 11), affinity_timeout_s=10800)
    pods = [lab.pod("podB"), lab.pod("podC")]
    sync(short, long, *(endpoints(each, family, *pods) for each in (short, long)))
    before = [_choices(lab, family, cluster_ip(family, number)) for number in (10, 11)]

    time.sleep(1.2)  # the kernel's clock is the subject

    after = [_choices(lab, family, cluster_ip(family, number)) for number in (10, 11)]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_affinity_is_kept_for_each_port_by_itself(lab: Lab, sync: Sync, family: Family) -> None:
    """On two ports of one Service with the same endpoints clients are sticky on each, not to the same one."""
    ports = [service_port(80, name="http"), service_port(81, name="ws")]
    web = service(cluster_ip=cluster_ip(family), ports=ports, affinity_timeout_s=10800)
    sync(web, endpoints(web, family, lab.pod("podB"), lab.pod("podC")))

    first = [_choices(lab, family, cluster_ip(family), port) for port in (80, 81)]
    second = [_choices(lab, family, cluster_ip(family), port) for port in (80, 81)]

    assert second == first
    assert first[0] != first[1]


def test_affinity_ends_with_its_endpoint(lab: Lab, sync: Sync, family: Family) -> None:
    """Clients of an endpoint that does not serve any more go elsewhere at once, the others stay; nobody flaps later."""
    web = service(cluster_ip=cluster_ip(family), affinity_timeout_s=10800)
    pods = [lab.pod("podB"), lab.pod("podC"), lab.pod("podD")]
    sync(web, endpoints(web, family, *pods))
    before = _choices(lab, family, cluster_ip(family))
    sync(web, endpoints(web, family, endpoint(pods[0], family, ready=False, serving=False), *pods[1:]))

    without = _choices(lab, family, cluster_ip(family))
    sync(web, endpoints(web, family, *pods))
    again = [_choices(lab, family, cluster_ip(family)) for _ in range(2)]

    assert set(without.values()) == {"podC", "podD"}
    stayed = {source: name for source, name in before.items() if name != "podB"}
    assert {source: without[source] for source in stayed} == stayed
    assert again == [without, without]
