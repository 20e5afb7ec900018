"""
Machines that lack an optional part, with real packets: what is done instead works, and nothing is refused.

The restore programs are scripts that refuse what uses the part, in the words of such a machine; all else is real.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.check import check
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.errors import Severity
from kproxy_ipt.rules.fallbacks import FALLBACKS
from kproxy_ipt.state.model import OptionalPart
from kproxy_ipt.testing.desired import ApiObject, objects_of
from kproxy_ipt.testing.lab import NODE_NAME, Lab
from kproxy_ipt.testing.lab_objects import (
    NODE_PORT,
    SECOND_NODE_ADDRESS,
    balancer_ip,
    cluster_ip,
    endpoints,
    open_service,
    own_node,
    stranger,
)
from kproxy_ipt.testing.objects import service
from kproxy_ipt.testing.shims import Shims
from kproxy_ipt.testing.topology import CLUSTER_CIDRS

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
Lack = Callable[[OptionalPart], None]
_COUNT = 48
_USES = {
    OptionalPart.NFACCT: "nfacct",
    OptionalPart.RANDOM_FULLY: "--random-fully",
    OptionalPart.RECENT: "recent",
    OptionalPart.ADDRTYPE: "addrtype",
    OptionalPart.SCTP: "sctp",
    OptionalPart.STATISTIC: "statistic",
}


@pytest.fixture
def lack(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lack:
    """From now on both restore programs of the backend lack a part."""
    shims = Shims(tmp_path / "shims")

    def begin(part: OptionalPart) -> None:
        for word in ("iptables", "ip6tables"):
            shims.install(f"{word}-{backend}-restore")
            shims.lack(f"{word}-{backend}-restore", _USES[part])
        monkeypatch.setenv("PATH", f"{shims.folder}:{os.environ['PATH']}")

    return begin


def _note(report: RunReport, family: Family, part: OptionalPart) -> str:
    assert report.error is None
    return next(note for note in report.families[family].notes if f"lacks {part}: {FALLBACKS[part].instead}" in note)


@pytest.mark.parametrize("part", [OptionalPart(part) for part in OptionalPart])
def test_no_rule_uses_what_is_missing_and_check_agrees(
    lab: Lab,
    sync: Sync,
    family: Family,
    backend: BackendWish,
    lack: Lack,
    iptables: Callable[..., str],
    part: OptionalPart,
) -> None:
    """Each part: rules stand without it, Services answer, a comparison finds nothing, a note says what is missing."""
    web = open_service(family, external_policy="Local")
    sticky = service("sticky", cluster_ip=cluster_ip(family, 12), affinity_timeout_s=60)
    stream = open_service(family, "stream", number=11, node_port=30081, protocol="SCTP")
    pods = [lab.pod("podB"), lab.pod("podC")]
    services = [web, sticky, stream]
    found: list[ApiObject] = [own_node(), *services, *(endpoints(each, family, *pods) for each in services)]
    lack(part)
    report = sync(*found)
    target = Target(netns=lab.node.netns, backend=backend, families=(family,))

    assert _note(report, family, part)
    assert _USES[part] not in iptables(lab, suffix="-save")
    assert set(lab.client.send(balancer_ip(family), 80, count=5).names) <= {"podB", "podC"}
    assert lab.pod("podA").send(cluster_ip(family, 12), 80, count=5).exchanges
    config = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))
    assert not check(lambda: objects_of(found), config, NODE_NAME, target).has_drift


def test_without_recent_clients_are_balanced(lab: Lab, sync: Sync, family: Family, lack: Lack) -> None:
    """A client of a Service with affinity meets several endpoints; the note names the Service."""
    lack(OptionalPart.RECENT)
    web = service(cluster_ip=cluster_ip(family), affinity_timeout_s=10800)
    report = sync(web, endpoints(web, family, lab.pod("podB"), lab.pod("podC")))

    assert set(lab.pod("podA").send(cluster_ip(family), 80, count=_COUNT).names) == {"podB", "podC"}
    assert _note(report, family, OptionalPart.RECENT).endswith("this concerns default/web")


def test_without_statistic_the_first_endpoint_gets_all(lab: Lab, sync: Sync, family: Family, lack: Lack) -> None:
    """One endpoint answers everything, and the note says so in capitals."""
    lack(OptionalPart.STATISTIC)
    web = service(cluster_ip=cluster_ip(family))
    report = sync(web, endpoints(web, family, lab.pod("podB"), lab.pod("podC")))

    assert lab.pod("podA").send(cluster_ip(family), 80, count=_COUNT).names == {"podB": _COUNT}
    assert "ALL THEIR CONNECTIONS" in _note(report, family, OptionalPart.STATISTIC)


def test_without_addrtype_node_ports_answer_on_every_node_address(
    lab: Lab, sync: Sync, family: Family, lack: Lack
) -> None:
    """Pod, node and client reach a node port on both addresses; on 127.0.0.1 too; a foreign address is not taken."""
    lack(OptionalPart.ADDRTYPE)
    web = open_service(family)
    sync(web, endpoints(web, family, lab.remote))

    for place in (lab.pod("podA"), lab.node, lab.client):
        for address in (lab.node.address(family), SECOND_NODE_ADDRESS[family]):
            assert place.send(address, NODE_PORT, count=3).names == {"remote": 3}, f"{place.name} to {address}"
    if family is Family.IPV4:
        assert lab.node.send("127.0.0.1", NODE_PORT).names == {"remote": 1}
    assert not lab.node.send(lab.client.address(family), NODE_PORT, timeout_s=0.3).names


def test_without_addrtype_the_node_reaches_policy_local_on_other_nodes(
    lab: Lab, sync: Sync, family: Family, lack: Lack
) -> None:
    """The short cut for the node's own traffic works by its addresses; traffic from outside is still dropped."""
    lack(OptionalPart.ADDRTYPE)
    web = open_service(family, external_policy="Local")
    sync(web, endpoints(web, family, lab.remote))

    outside = lab.client.send(balancer_ip(family), 80, sources=[stranger(family)], timeout_s=0.3)

    assert lab.node.send(balancer_ip(family), 80, count=3).names == {"remote": 3}
    assert not outside.names


def test_without_addrtype_a_node_port_without_endpoints_is_refused(
    lab: Lab, sync: Sync, family: Family, lack: Lack
) -> None:
    """The REJECT for node ports stands for each address of the node."""
    lack(OptionalPart.ADDRTYPE)
    web = open_service(family)
    sync(web, endpoints(web, family))

    for address in (lab.node.address(family), SECOND_NODE_ADDRESS[family]):
        refused = lab.client.send(address, NODE_PORT, timeout_s=1.0)

        assert {str(outcome) for outcome in refused.outcomes} == {"refused"}


def test_without_sctp_its_services_are_set_aside_with_the_reason(
    lab: Lab, sync: Sync, family: Family, lack: Lack
) -> None:
    """The Service of SCTP is rejected by name, the one of TCP answers."""
    lack(OptionalPart.SCTP)
    web = open_service(family)
    stream = open_service(family, "stream", number=11, node_port=30081, protocol="SCTP")
    report = sync(web, stream, *(endpoints(each, family, lab.pod("podB")) for each in (web, stream)))

    (finding,) = report.findings
    assert (finding.object, finding.severity) == ("Service default/stream", Severity.REJECTED)
    assert "the match sctp" in finding.expected
    assert lab.pod("podA").send(cluster_ip(family), 80, count=3).names == {"podB": 3}
