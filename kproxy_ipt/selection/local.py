"""
What counts as traffic from pods of this node.

The answer is a test on the packet's header, by source prefix or by incoming interface. Without one, the rules that
tell pods from others are left out: off-cluster sources are then not masqueraded, and pods get no short cut past
policy Local. By interface, traffic of the node itself has no incoming interface and counts as not local.

Source: `detectLocalMode`, `clusterCIDR`, `detectLocal` of KubeProxyConfiguration; `spec.podCIDRs` of the Node.
"""

import msgspec

from kproxy_ipt.addresses import Family, family_of
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.state.model import NodeFacts


class LocalTraffic(msgspec.Struct, frozen=True):
    """The test for local traffic: a source prefix or an interface (prefix ending in `+`); exactly one is set."""

    source: str = ""
    in_interface: str = ""


def local_traffic(config: Config, node: NodeFacts, family: Family) -> LocalTraffic | None:
    """The test that *config* asks for, or None where *family* has none."""
    mode = config.detect_local_mode
    if mode is DetectLocalMode.BRIDGE_INTERFACE:
        return LocalTraffic(in_interface=config.bridge_interface)
    if mode is DetectLocalMode.INTERFACE_NAME_PREFIX:
        return LocalTraffic(in_interface=f"{config.interface_name_prefix}+")
    prefixes = node.pod_cidrs if mode is DetectLocalMode.NODE_CIDR else config.cluster_cidrs
    for prefix in prefixes:
        if family_of(prefix) is family:
            return LocalTraffic(source=prefix)
    return None
