"""
What the configuration means on one node: its name, its addresses, its node port addresses, and what does not fit.

Nothing here asks the machine or the cluster: the facts are arguments.

Source: `nodeutil.GetHostname`, `detectNodeIPs`, `checkBadConfig` and `checkBadIPConfig` of kube-proxy.
"""

from collections.abc import Iterator, Sequence

import msgspec

from kproxy_ipt.addresses import Family, canonical_address, family_of, is_loopback
from kproxy_ipt.config.host_port import split_host_port
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.errors import ConfigError

_UNSPECIFIED = frozenset({"0.0.0.0", "::"})


class NodeIPs(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a node in each family, canonical; loopback stands for "unknown"."""

    primary_family: Family
    ipv4: str
    ipv6: str


def node_name(config: Config, os_hostname: str) -> str:
    """
    The name of the Node object: `hostnameOverride`, else the name of the machine; trimmed and in lower case.

    Raises:
        ConfigError: Nothing is left of it.
    """
    name = (config.hostname_override or os_hostname).strip().lower()
    if not name:
        raise ConfigError(("the node name is empty: set --hostname-override or hostnameOverride",))
    return name


def node_ips(bind_address: str, node_addresses: Sequence[str]) -> NodeIPs:
    """
    The addresses that stand for the node.

    Args:
        bind_address: A specified address replaces the one of its family and makes that family the primary one.
        node_addresses: Canonical, of the Node object: all InternalIP, then all ExternalIP. The first one is the
            primary one, the first one of the other family the second.
    """
    known = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
    primary = family_of(node_addresses[0]) if node_addresses else Family.IPV4
    for address in reversed(node_addresses):
        known[family_of(address)] = address
    bound = canonical_address(bind_address)
    if bound is not None and bound not in _UNSPECIFIED:
        primary = family_of(bound)
        known[primary] = bound
    return NodeIPs(primary_family=primary, ipv4=known[Family.IPV4], ipv6=known[Family.IPV6])


def expand_node_port_addresses(config: Config, node: NodeIPs) -> tuple[str, ...]:
    """The prefixes of `nodePortAddresses`; `primary` becomes the node's own addresses; empty means all addresses."""
    if config.node_port_addresses != ("primary",):
        return config.node_port_addresses
    prefixes = (f"{node.ipv4}/32", f"{node.ipv6}/128")
    return tuple(prefix for prefix in prefixes if not is_loopback(prefix.partition("/")[0]))


def family_notes(
    config: Config, node: NodeIPs, pod_cidrs: Sequence[str], families: frozenset[Family]
) -> tuple[str, ...]:
    """
    Judge the ranges of local traffic against the families of the node.

    Args:
        config: As decoded, `primary` not expanded.
        node: From `node_ips`.
        pod_cidrs: Canonical `spec.podCIDRs`; looked at in NodeCIDR mode only.
        families: Those that can be written on this machine; two mean dual-stack.

    Returns:
        One line for each thing that is probably not meant.

    Raises:
        ConfigError: All ranges that detect local traffic are of the other family, and that leaves nothing to detect it
            by: `clusterCIDR` on a single-stack machine, `podCIDRs` always.
    """
    problems = tuple(_fatal(config, node, _pods(config, pod_cidrs), families))
    if problems:
        raise ConfigError(problems)
    return tuple(_range_notes(config, node, families))


def startup_notes(
    config: Config, node: NodeIPs, pod_cidrs: Sequence[str], families: frozenset[Family]
) -> tuple[str, ...]:
    """
    Judge a Config against the node, as a daemon does when it starts.

    Returns:
        Those of `family_notes`, and what is odd about open addresses: node ports, servers.

    Raises:
        ConfigError: As `family_notes`.
    """
    return (
        *family_notes(config, node, pod_cidrs, families),
        *_node_port_notes(config, node, _pods(config, pod_cidrs)),
        *_server_notes(config, node, families),
    )


def _pods(config: Config, pod_cidrs: Sequence[str]) -> tuple[str, ...]:
    return tuple(pod_cidrs) if config.detect_local_mode is DetectLocalMode.NODE_CIDR else ()


def _families(prefixes: Sequence[str]) -> frozenset[Family]:
    return frozenset(family_of(prefix) for prefix in prefixes)


def _other(family: Family) -> Family:
    return Family.IPV6 if family is Family.IPV4 else Family.IPV4


def _kind(node: NodeIPs, families: frozenset[Family]) -> str:
    return f"{node.primary_family.api_name}-{'primary' if len(families) == 2 else 'only'}"


def _misses_primary(prefixes: Sequence[str], node: NodeIPs) -> bool:
    return bool(prefixes) and _families(prefixes) == {_other(node.primary_family)}


def _fatal(config: Config, node: NodeIPs, pods: Sequence[str], families: frozenset[Family]) -> Iterator[str]:
    wrong = _other(node.primary_family).api_name
    is_single_stack = len(families) < 2
    uses_cluster = config.detect_local_mode is DetectLocalMode.CLUSTER_CIDR
    if is_single_stack and uses_cluster and _misses_primary(config.cluster_cidrs, node):
        yield f"the node is {_kind(node, families)} but clusterCIDR holds only {wrong} ranges"
    if _misses_primary(pods, node):
        yield f"the node is {_kind(node, families)} but spec.podCIDRs of the Node holds only {wrong} ranges"


def _range_notes(config: Config, node: NodeIPs, families: frozenset[Family]) -> Iterator[str]:
    if _misses_primary(config.cluster_cidrs, node):
        wrong = _other(node.primary_family).api_name
        yield f"the node is {_kind(node, families)} but clusterCIDR holds only {wrong} ranges"


def _node_port_notes(config: Config, node: NodeIPs, pods: Sequence[str]) -> Iterator[str]:
    accepted = expand_node_port_addresses(config, node)
    primary, other = node.primary_family.api_name, _other(node.primary_family).api_name
    is_dual_stack = any(len(_families(ranges)) == 2 for ranges in (config.cluster_cidrs, accepted, pods))
    if not accepted:
        yield (
            "nodePortAddresses is unset: node ports are open on all addresses of the node; "
            "consider nodePortAddresses: [primary]"
        )
    elif is_dual_stack and _families(accepted) == {node.primary_family}:
        yield (
            f"the cluster appears to be dual-stack but nodePortAddresses holds only {primary} ranges: "
            f"node ports are open on all {other} addresses of the node"
        )
    elif _misses_primary(accepted, node):
        yield (
            f"the cluster appears to be {primary}-primary but nodePortAddresses holds only {other} ranges: "
            f"node ports are open on all {primary} addresses of the node"
        )


def _server_notes(config: Config, node: NodeIPs, families: frozenset[Family]) -> Iterator[str]:
    if len(families) == 2:
        return
    addresses = {"healthzBindAddress": config.healthz_bind_address, "metricsBindAddress": config.metrics_bind_address}
    for field, address in addresses.items():
        parts = split_host_port(address)
        if parts is None or parts.host in _UNSPECIFIED or family_of(parts.host) is node.primary_family:
            continue
        yield f"the node is {_kind(node, families)} but {field} is {family_of(parts.host).api_name}"
