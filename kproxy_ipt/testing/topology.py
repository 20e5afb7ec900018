"""
The picture of `lab.py` as lines for `ip -batch`: which links, addresses and routes each namespace of a lab gets.

Nothing is run here, so that the network can be read in one place. Labels are `wire`, `node`, `client`, `remote` and the
names of the pods.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from kproxy_ipt.addresses import Family

BOTH = (Family.IPV4, Family.IPV6)
CLUSTER_CIDRS = {Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/56"}
SERVICE_CIDRS = {Family.IPV4: "10.96.0.0/12", Family.IPV6: "fd00:10:96::/112"}
LOAD_BALANCER_CIDRS = {Family.IPV4: "192.0.2.192/26", Family.IPV6: "2001:db8::c000/114"}
"""On the link of the client, and yet routed through the node: whoever claims such an address need not answer ARP."""
MANY_CLIENTS = {Family.IPV4: "198.18.0.0/16", Family.IPV6: "2001:db8:18::/64"}
"""Source addresses of the client besides its own one; every address of these prefixes can be used."""

_LINK = {Family.IPV4: "192.0.2.0/24", Family.IPV6: "2001:db8::/64"}
_NODE = {Family.IPV4: "192.0.2.10", Family.IPV6: "2001:db8::10"}
_REMOTE_NODE = {Family.IPV4: "192.0.2.20", Family.IPV6: "2001:db8::20"}
_CLIENT = {Family.IPV4: "192.0.2.50", Family.IPV6: "2001:db8::50"}
_GATEWAY = {Family.IPV4: "10.244.1.1", Family.IPV6: "fd00:10:244:1::1"}
_POD_PREFIX = {Family.IPV4: "10.244.1.", Family.IPV6: "fd00:10:244:1::"}
_REMOTE_POD = {Family.IPV4: "10.244.2.21", Family.IPV6: "fd00:10:244:2::21"}
_REMOTE_CIDR = {Family.IPV4: "10.244.2.0/24", Family.IPV6: "fd00:10:244:2::/64"}
_LENGTH = {Family.IPV4: 24, Family.IPV6: 64}
_FIRST_POD = 11
_OUTSIDE = ("node", "client", "remote")

_SYSCTLS = {
    "ipv6/conf/default/accept_dad": "0",
    "ipv6/conf/default/accept_ra": "0",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/icmp_ratemask": "0",
    # Only the type 255, which nobody sends, is limited: a rate limit of 0 alone leaves the limit for the whole machine.
    "ipv6/icmp/ratemask": "255",
}
_SYSCTLS_OF = {
    "node": {
        "ipv4/ip_forward": "1",
        "ipv6/conf/all/forwarding": "1",
        "ipv4/conf/all/send_redirects": "0",
        "ipv4/conf/default/send_redirects": "0",
    },
    "client": {
        "ipv4/conf/all/accept_redirects": "0",
        "ipv6/conf/default/accept_redirects": "0",
        "ipv6/ip_nonlocal_bind": "1",
    },
    "remote": {"ipv6/ip_nonlocal_bind": "1"},
}


class Attachment(StrEnum):
    """How pods hang on the node."""

    ROUTED = "routed"
    """A veth pair and a route for each pod."""
    BRIDGE = "bridge"
    """All veth pairs in the bridge `cni0`, whose ports do not send a packet back where it came from."""
    HAIRPIN_BRIDGE = "hairpin-bridge"
    """The same, with ports that do."""


def addresses(pods: Sequence[str], families: Sequence[Family]) -> dict[str, dict[Family, str]]:
    """The own addresses of every label but `wire`; those of pods end in 11, 12 and so on."""
    own = {"node": _NODE, "client": _CLIENT, "remote": _REMOTE_POD}
    for number, pod in enumerate(pods, _FIRST_POD):
        own[pod] = {family: f"{prefix}{number}" for family, prefix in _POD_PREFIX.items()}
    return {label: {family: each[family] for family in families} for label, each in own.items()}


def sysctls(label: str) -> dict[str, str]:
    """What to write under `/proc/sys/net` before the namespace has links; a kernel may lack the entries of a family."""
    return _SYSCTLS | _SYSCTLS_OF.get(label, {})


def links(netns_names: Mapping[str, str], pods: Sequence[str]) -> list[str]:
    """The veth pairs, each end made in its namespace; *netns_names* by label."""
    pairs = [(f"to-{end}", "wire", end) for end in _OUTSIDE] + [(f"veth-{pod}", "node", pod) for pod in pods]
    return [
        f"link add name {name} netns {netns_names[near]} type veth peer name eth0 netns {netns_names[far]}"
        for name, near, far in pairs
    ]


def bridge_ports(pods: Sequence[str], attachment: Attachment) -> dict[str, list[str]]:
    """The interfaces that are ports of a bridge, by label."""
    ports = {"wire": [f"to-{end}" for end in _OUTSIDE]}
    return ports if attachment is Attachment.ROUTED else ports | {"node": [f"veth-{pod}" for pod in pods]}


def bridges(pods: Sequence[str], attachment: Attachment) -> dict[str, list[str]]:
    """The bridges by label, to be applied after `links`."""
    ports = bridge_ports(pods, attachment)
    hairpin = "on" if attachment is Attachment.HAIRPIN_BRIDGE else "off"
    commands = {"wire": _bridge("wire", ports["wire"])}
    if "node" in ports:
        commands["node"] = _bridge("cni0", ports["node"])
        commands["node"] += [f"link set {port} type bridge_slave hairpin {hairpin}" for port in ports["node"]]
    return commands


def activation(pods: Sequence[str], attachment: Attachment) -> dict[str, list[str]]:
    """
    What brings up the links that `bridges` left down, by label.

    Ports of bridges must be up before their other ends: the kernel then sees to their carrier at once. That of the end
    that comes up second may wait for a second, which does no harm there.
    """
    commands = {label: ["link set lo up", "link set eth0 up"] for label in (*_OUTSIDE, *pods)}
    if attachment is Attachment.ROUTED:
        commands["node"] += [f"link set veth-{pod} up" for pod in pods]
    return commands


def configuration(
    pods: Mapping[str, Mapping[Family, str]], families: Sequence[Family], attachment: Attachment
) -> dict[str, list[str]]:
    """Addresses and routes by label, to be applied when the links are up; *pods* with their addresses."""
    commands: dict[str, list[str]] = {label: [] for label in (*_OUTSIDE, *pods)}
    for family in families:
        commands["node"] += _node(family)
        commands["client"] += _client(family)
        commands["remote"] += _remote(family)
        if attachment is not Attachment.ROUTED:
            commands["node"].append(_own(_GATEWAY[family], _LENGTH[family], "cni0"))
    for pod, own in pods.items():
        for family, address in own.items():
            commands[pod] += _pod(family, address, attachment)
            if attachment is Attachment.ROUTED:
                commands["node"] += _routed_port(family, address, f"veth-{pod}")
    return commands


def _own(address: str, length: int, device: str) -> str:
    return f"address add {address}/{length} dev {device}{' nodad' if ':' in address else ''}"


def _bridge(name: str, ports: Sequence[str]) -> list[str]:
    # No spanning tree: a port forwards from its first moment.
    return [
        f"link add {name} type bridge forward_delay 0 mcast_snooping 0",
        f"link set {name} up",
        *(f"link set {port} master {name} up" for port in ports),
    ]


def _node(family: Family) -> list[str]:
    return [
        _own(_NODE[family], _LENGTH[family], "eth0"),
        f"route add {_REMOTE_CIDR[family]} via {_REMOTE_NODE[family]}",
        f"route add {MANY_CLIENTS[family]} via {_CLIENT[family]}",
    ]


def _client(family: Family) -> list[str]:
    return [
        _own(_CLIENT[family], _LENGTH[family], "eth0"),
        f"route add default via {_NODE[family]}",
        f"route add {LOAD_BALANCER_CIDRS[family]} via {_NODE[family]}",
        f"route add local {MANY_CLIENTS[family]} dev lo",
    ]


def _remote(family: Family) -> list[str]:
    # What the remote pod sends to the link comes from the pod as well, hence no prefix route of the kernel's making.
    pod = _REMOTE_POD[family]
    return [
        _own(pod, family.bits, "lo"),
        f"route add local {_REMOTE_CIDR[family]} dev lo",
        f"{_own(_REMOTE_NODE[family], _LENGTH[family], 'eth0')} noprefixroute",
        f"route add {_LINK[family]} dev eth0 src {pod}",
        f"route add default via {_NODE[family]} src {pod}",
    ]


def _routed_port(family: Family, address: str, port: str) -> list[str]:
    return [_own(_GATEWAY[family], family.bits, port), f"route add {address}/{family.bits} dev {port}"]


def _pod(family: Family, address: str, attachment: Attachment) -> list[str]:
    gateway = _GATEWAY[family]
    if attachment is not Attachment.ROUTED:
        return [_own(address, _LENGTH[family], "eth0"), f"route add default via {gateway}"]
    return [
        _own(address, family.bits, "eth0"),
        f"route add {gateway}/{family.bits} dev eth0",
        f"route add default via {gateway} dev eth0",
    ]
