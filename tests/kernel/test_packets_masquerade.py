"""Who answers, and which source address is seen: masquerading in every combination of policy, source and entry."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, DetectLocalMode, IptablesConfig
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.testing.lab import Attachment, Lab, Place
from kproxy_ipt.testing.lab_objects import (
    SECOND_NODE_ADDRESS,
    balancer_ip,
    cluster_ip,
    endpoints,
    open_service,
    stranger,
)
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.testing.traffic import Outcome

pytestmark = pytest.mark.kernel

Sync = Callable[..., RunReport]
_CONFIG = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))
_NO_DETECTOR = Config()
_ALL = IptablesConfig(masquerade_all=True)
# Two equal shares: that one of them stays away in so many connections happens once in 10^14 cells.
_COUNT = 48
_GATEWAY = {Family.IPV4: "10.244.1.1", Family.IPV6: "fd00:10:244:1::1"}


class Cell(NamedTuple):
    """What became of the connections from one place to one entry of a Service."""

    answered_by: str
    masqueraded: bool


_BOTH, _BOTH_MASQ = Cell("podB remote", masqueraded=False), Cell("podB remote", masqueraded=True)
_LOCAL, _LOCAL_MASQ = Cell("podB", masqueraded=False), Cell("podB", masqueraded=True)
_BASE: Mapping[str, tuple[Cell, Cell, Cell]] = {
    # From and to: both policies Cluster, external policy Local, internal policy Local.
    "pod -> cluster IP": (_BOTH, _BOTH, _LOCAL),
    "pod -> node port": (_BOTH_MASQ, _BOTH, _BOTH_MASQ),
    "pod -> load balancer IP": (_BOTH_MASQ, _BOTH, _BOTH_MASQ),
    "pod -> external IP": (_BOTH_MASQ, _BOTH, _BOTH_MASQ),
    "node -> cluster IP": (_BOTH_MASQ, _BOTH_MASQ, _LOCAL_MASQ),
    "node -> node port": (_BOTH_MASQ, _BOTH_MASQ, _BOTH_MASQ),
    "node -> load balancer IP": (_BOTH_MASQ, _BOTH_MASQ, _BOTH_MASQ),
    "node -> external IP": (_BOTH_MASQ, _BOTH_MASQ, _BOTH_MASQ),
    "outside -> cluster IP": (_BOTH_MASQ, _BOTH_MASQ, _LOCAL_MASQ),
    "outside -> node port": (_BOTH_MASQ, _LOCAL, _BOTH_MASQ),
    "outside -> load balancer IP": (_BOTH_MASQ, _LOCAL, _BOTH_MASQ),
    "outside -> external IP": (_BOTH_MASQ, _LOCAL, _BOTH_MASQ),
}
_LOCALHOST = {"127.0.0.1 -> node port": (_BOTH_MASQ, _BOTH_MASQ, _BOTH_MASQ)}
_SHORT_CUT_GONE = {
    f"pod -> {entry}": (_BOTH_MASQ, _LOCAL, _BOTH_MASQ) for entry in ("node port", "load balancer IP", "external IP")
}
_UNDETECTED = {f"{place} -> cluster IP": (_BOTH, _BOTH, _LOCAL) for place in ("node", "outside")} | _SHORT_CUT_GONE
_PODS_TOO = {"pod -> cluster IP": (_BOTH_MASQ, _BOTH_MASQ, _LOCAL_MASQ)}
_MATRIX = {
    "detector": (_CONFIG, {}),
    "no detector": (_NO_DETECTOR, _UNDETECTED),
    "masquerade all": (msgspec.structs.replace(_CONFIG, iptables=_ALL), _PODS_TOO),
    "masquerade all, no detector": (msgspec.structs.replace(_NO_DETECTOR, iptables=_ALL), _SHORT_CUT_GONE | _PODS_TOO),
}
_POLICIES: tuple[tuple[str | None, str | None], ...] = ((None, None), ("Local", None), (None, "Local"))


def _ask(place: Place, address: str, port: int, source: str) -> Cell:
    """Connect some times from a source, and say who answered and whether anybody saw another source."""
    traffic = place.send(address, port, count=_COUNT, sources=[source], timeout_s=3.0)
    assert traffic.outcomes == {Outcome.ANSWERED: _COUNT}, f"{source} to {address} port {port}"
    seen = set(traffic.seen_addresses)
    assert source not in seen or seen == {source}, f"{source} to {address} port {port}: masqueraded in part"
    return Cell(" ".join(sorted(traffic.names)), masqueraded=source not in seen)


def _cells(lab: Lab, family: Family, number: int) -> dict[str, Cell]:
    """Try the Service of that number from everywhere through every entry."""
    pod, node, client = lab.pod("podA"), lab.node, lab.client
    sources = {
        "pod": (pod, pod.address(family)),
        "node": (node, SECOND_NODE_ADDRESS[family]),
        "outside": (client, stranger(family)),
    }
    entries = {
        "cluster IP": (cluster_ip(family, number), 80),
        "node port": (node.address(family), 30000 + number),
        "load balancer IP": (balancer_ip(family, number - 2), 80),
        "external IP": (balancer_ip(family, number + 18), 80),
    }
    cells = {
        f"{where} -> {what}": _ask(place, *entry, source)
        for where, (place, source) in sources.items()
        for what, entry in entries.items()
    }
    if family is Family.IPV4:
        cells["127.0.0.1 -> node port"] = _ask(node, "127.0.0.1", 30000 + number, "127.0.0.1")
    return cells


@pytest.mark.parametrize(("config", "changes"), _MATRIX.values(), ids=list(_MATRIX))
def test_policies_and_settings_decide_about_endpoints_and_source(
    lab: Lab, sync: Sync, family: Family, config: Config, changes: Mapping[str, tuple[Cell, Cell, Cell]]
) -> None:
    """Every source and entry meets the endpoints of its policy, and is masqueraded exactly where the table says so."""
    services = [
        open_service(
            family, f"s{number}", number=number, node_port=30000 + number, external_policy=outer, internal_policy=inner
        )
        for number, (outer, inner) in enumerate(_POLICIES, 10)
    ]
    sync(*services, *(endpoints(each, family, lab.pod("podB"), lab.remote) for each in services), config=config)

    observed = [_cells(lab, family, number) for number in (10, 11, 12)]

    table = {**_BASE, **(_LOCALHOST if family is Family.IPV4 else {}), **changes}
    assert observed == [{where: cells[column] for where, cells in table.items()} for column in range(3)]


@pytest.mark.parametrize(
    "config",
    [
        _CONFIG,
        Config(detect_local_mode=DetectLocalMode.NODE_CIDR),
        Config(detect_local_mode=DetectLocalMode.INTERFACE_NAME_PREFIX, interface_name_prefix="veth-"),
    ],
    ids=lambda config: config.detect_local_mode.value,
)
def test_every_way_to_detect_pods_keeps_their_source(lab: Lab, sync: Sync, family: Family, config: Config) -> None:
    """In each mode pods keep their address to a cluster IP and past policy Local; outside and node are masqueraded."""
    web = open_service(family, external_policy="Local")
    sync(web, endpoints(web, family, lab.remote), config=config)
    pod, outside, own = lab.pod("podA"), stranger(family), SECOND_NODE_ADDRESS[family]

    address = cluster_ip(family)
    assert pod.send(address, 80).seen_addresses == {pod.address(family): 1}
    assert pod.send(lab.node.address(family), 30080).seen_addresses == {pod.address(family): 1}
    for place, source in ((lab.client, outside), (lab.node, own)):
        assert place.send(address, 80, sources=[source]).seen_addresses == {lab.node.address(family): 1}


def test_bridge_detects_its_pods(sync: Sync, family: Family) -> None:
    """With BridgeInterface what comes in by the bridge keeps its address, all else is masqueraded."""
    config = Config(detect_local_mode=DetectLocalMode.BRIDGE_INTERFACE, bridge_interface="cni0")
    with Lab(("podA",), attachment=Attachment.BRIDGE) as bridged:
        bridged.remote.serve(8080)
        web = open_service(family)
        sync(web, endpoints(web, family, bridged.remote), config=config, into=bridged)
        pod = bridged.pod("podA")

        assert pod.send(cluster_ip(family), 80).seen_addresses == {pod.address(family): 1}
        assert bridged.client.send(cluster_ip(family), 80).seen_addresses == {bridged.node.address(family): 1}


def test_pod_that_reaches_itself_is_masqueraded_and_others_are_not(lab: Lab, sync: Sync, family: Family) -> None:
    """Of two endpoints the calling pod sees the node as source when it chose itself; its neighbour sees the pod."""
    web = open_service(family)
    pod = lab.pod("podA")
    sync(web, endpoints(web, family, pod, lab.pod("podB")))

    traffic = pod.send(cluster_ip(family), 80, count=_COUNT)

    seen = {(each.name, each.seen_address) for each in traffic.exchanges}
    assert seen == {("podA", _GATEWAY[family]), ("podB", pod.address(family))}


@pytest.mark.parametrize("attachment", [Attachment.BRIDGE, Attachment.HAIRPIN_BRIDGE])
def test_pod_reaches_itself_over_a_bridge_whose_ports_turn_packets_round(
    sync: Sync, family: Family, attachment: Attachment
) -> None:
    """On a bridge port with hairpin a pod reaches itself through its Service as the node; without, nothing returns."""
    with Lab(("podA",), attachment=attachment) as bridged:
        pod = bridged.pod("podA")
        pod.serve(8080)
        web = open_service(family)
        sync(web, endpoints(web, family, pod), into=bridged)

        traffic = pod.send(cluster_ip(family), 80, timeout_s=0.5)

    works = attachment is Attachment.HAIRPIN_BRIDGE
    assert traffic.outcomes == {Outcome.ANSWERED if works else Outcome.TIMEOUT: 1}
    assert traffic.seen_addresses == ({_GATEWAY[family]: 1} if works else {})
