"""
Makes and removes the namespaces, links and routes of a lab.

Pods hang on their node by a veth pair and a route each. A bridge would be more usual, and wrong here: two pods of one
bridge answer each other past the rules of the node unless the kernel has br_netfilter.

Each namespace leaves a mark in the folder of the lab before it is made, so that whoever cleans up after an accident
knows which ones are the lab's, and removes no other.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import MissingProgramError, NamespaceError
from kproxy_ipt.kernel.netns import NAMED_FOLDER
from kproxy_ipt.lab.layout import BALANCER_CIDRS, CLIENT, CLIENT_ADDRESSES, LINK_LENGTHS, NODES, WIRE, LabNode, Layout
from kproxy_ipt.testing import topology
from kproxy_ipt.testing.namespaces import write_net_sysctls

_TIMEOUT_S = 20.0
_BALANCE_BY_PORTS = {"ipv4/fib_multipath_hash_policy": "1", "ipv6/fib_multipath_hash_policy": "1"}


def build(layout: Layout) -> None:
    """
    Make the wire, the nodes and the client.

    Raises:
        NamespaceError: The kernel or the program `ip` says no.
        MissingProgramError: There is no program `ip`.
    """
    outside = [*(node.name for node in NODES), CLIENT]
    for label in (WIRE, *outside):
        _create(layout, layout.netns(label))
        write_net_sysctls(layout.netns(label), topology.sysctls("node" if label.startswith("n") else label))
    write_net_sysctls(layout.netns(CLIENT), _BALANCE_BY_PORTS)
    wire = layout.netns(WIRE)
    pair = "link add to-{0} netns {1} type veth peer name eth0 netns {2}"
    _run_ip("", [pair.format(label, wire, layout.netns(label)) for label in outside])
    _run_ip(wire, ["link add wire type bridge forward_delay 0 mcast_snooping 0", "link set wire up"])
    _run_ip(wire, [f"link set to-{label} master wire up" for label in outside])
    for node in NODES:
        _run_ip(layout.netns(node.name), _node_lines(node))
    _run_ip(layout.netns(CLIENT), _client_lines())


def add_pod(layout: Layout, netns: str, node: LabNode, index: int) -> None:
    """
    Make the namespace of a pod and connect it with its node; *index* is the last part of its addresses.

    Raises:
        NamespaceError: The kernel or the program `ip` says no.
    """
    _create(layout, netns)
    write_net_sysctls(netns, topology.sysctls("pod"))
    addresses = node.pod_addresses(index)
    _run_ip("", [f"link add pod{index} netns {layout.netns(node.name)} type veth peer name eth0 netns {netns}"])
    _run_ip(layout.netns(node.name), _port_lines(node, addresses, f"pod{index}"))
    _run_ip(netns, _pod_lines(node, addresses))


def remove(layout: Layout, netns: str) -> None:
    """Remove a namespace of the lab with its links; one that is gone is no error."""
    subprocess.run(["ip", "netns", "delete", netns], capture_output=True, timeout=_TIMEOUT_S, check=False)
    (layout.namespaces / netns).unlink(missing_ok=True)


def remove_all(layout: Layout) -> None:
    """Remove every namespace that has a mark in the folder of the lab."""
    with suppress(FileNotFoundError):
        for mark in sorted(layout.namespaces.iterdir()):
            remove(layout, mark.name)


def route_balancers(layout: Layout, routes: Mapping[str, Sequence[LabNode]]) -> None:
    """
    Let the client reach addresses of load balancers through the nodes; with none, the address is unreachable.

    Raises:
        NamespaceError: The kernel or the program `ip` says no.
    """
    _run_ip(layout.netns(CLIENT), [_balancer_line(address, nodes) for address, nodes in routes.items()])


def exists(netns: str) -> bool:
    """Whether there is a network namespace of that name."""
    return Path(NAMED_FOLDER, netns).exists()


def _create(layout: Layout, netns: str) -> None:
    if exists(netns):
        raise NamespaceError(f"the network namespace {netns} is there already, and not of this lab; see ip netns")
    (layout.namespaces / netns).touch()
    _run(["ip", "netns", "add", netns])
    _run_ip(netns, ["link set lo up"])


def _run_ip(netns: str, lines: Sequence[str]) -> None:
    """Run one `ip -batch` in a namespace, "" for where we are."""
    if lines:
        _run(["ip", *(["-n", netns] if netns else []), "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: Sequence[str], stdin: str = "") -> None:
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise MissingProgramError("the program ip is missing: install iproute2") from error
    if done.returncode:
        raise NamespaceError(f"{' '.join(command)}: {done.stderr.strip()}")


def _own(address: str, length: int, device: str) -> str:
    return f"address add {address}/{length} dev {device}{' nodad' if ':' in address else ''}"


def _node_lines(node: LabNode) -> list[str]:
    lines = ["link set eth0 up"]
    for family, address in node.addresses.items():
        lines.append(_own(address, LINK_LENGTHS[family], "eth0"))
        # Without any route to it, a cluster IP would never get as far as the rules.
        lines.append(f"route add default via {CLIENT_ADDRESSES[family]}")
        lines += [
            f"route add {other.pod_cidrs[family]} via {other.addresses[family]}" for other in NODES if other != node
        ]
    return lines


def _client_lines() -> list[str]:
    lines = ["link set eth0 up"]
    for family, address in CLIENT_ADDRESSES.items():
        lines.append(_own(address, LINK_LENGTHS[family], "eth0"))
        lines += [f"route add {node.pod_cidrs[family]} via {node.addresses[family]}" for node in NODES]
        lines.append(f"route add unreachable {BALANCER_CIDRS[family]}")
    return lines


def _port_lines(node: LabNode, addresses: Mapping[Family, str], port: str) -> list[str]:
    lines = [f"link set {port} up"]
    for family, address in addresses.items():
        lines.append(_own(node.gateways[family], family.bits, port))
        lines.append(f"route add {address}/{family.bits} dev {port}")
    return lines


def _pod_lines(node: LabNode, addresses: Mapping[Family, str]) -> list[str]:
    lines = ["link set eth0 up"]
    for family, address in addresses.items():
        gateway = node.gateways[family]
        lines.append(_own(address, family.bits, "eth0"))
        lines += [f"route add {gateway}/{family.bits} dev eth0", f"route add default via {gateway} dev eth0"]
    return lines


def _balancer_line(address: str, nodes: Sequence[LabNode]) -> str:
    family = Family.IPV6 if ":" in address else Family.IPV4
    if not nodes:
        return f"route replace unreachable {address}/{family.bits}"
    hops = " ".join(f"nexthop via {node.addresses[family]}" for node in nodes)
    return f"route replace {address}/{family.bits} {hops}"
