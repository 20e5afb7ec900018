"""
Names that kube-proxy gives in its other modes, or gave in older versions: exact ones, so that nothing else is meant.

Source: kube-proxy up to v1.36: modes ipvs and nftables, the iptables mode before v1.25 (KUBE-XLB, KUBE-MARK-DROP), the
userspace mode before v1.26.
"""

import re

NFTABLES_TABLE = "kube-proxy"
"""The table of the nftables mode, one of family ip and one of family ip6."""

IPVS_INTERFACE = "kube-ipvs0"
"""The dummy interface that holds the addresses of Services in the ipvs mode."""

IPVS_CHAINS = {
    "nat": frozenset({"KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-FIRE-WALL"}),
    "filter": frozenset({"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER"}),
}
"""Chains of the ipvs mode alone, by table; those that it shares with the iptables mode are not among them."""

_IPVS_SETS = (
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
)
IPVS_SETS = frozenset(f"{prefix}{name}" for name in _IPVS_SETS for prefix in ("KUBE-", "KUBE-6-"))
"""Sets of addresses of the ipvs mode."""

KUBE_MARK_DROP = "KUBE-MARK-DROP"
KUBELET_CHAINS = frozenset({"KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"})
_USERSPACE_CHAINS = frozenset(
    {
        "KUBE-PORTALS-CONTAINER",
        "KUBE-PORTALS-HOST",
        "KUBE-NODEPORT-CONTAINER",
        "KUBE-NODEPORT-HOST",
        "KUBE-NODEPORT-NON-LOCAL",
    }
)
_LOCAL_CHAIN = re.compile(r"KUBE-XLB-[A-Z2-7]{16}")


def is_ipvs_chain(table: str, chain: str) -> bool:
    """Whether only the ipvs mode makes such a chain."""
    return chain in IPVS_CHAINS.get(table, ())


def is_older_chain(table: str, chain: str) -> bool:
    """Whether only older versions made such a chain; KUBE-MARK-DROP was the kubelet's as well."""
    is_known = chain == KUBE_MARK_DROP or chain in _USERSPACE_CHAINS
    return table == "nat" and (is_known or _LOCAL_CHAIN.fullmatch(chain) is not None)
