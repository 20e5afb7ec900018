"""
What is odd about a valid configuration: one line each, never a reason to stop.

Decided against: refusing what kube-proxy accepts. A ConfigMap that runs a cluster today has to start us too. The
exception is the name of an interface that no rule can hold: kube-proxy starts with it, and never writes a rule.
"""

from collections.abc import Iterator

from kproxy_ipt.addresses import canonical_prefix, is_zero_prefix
from kproxy_ipt.config.document import Document, active_sync_periods
from kproxy_ipt.config.duration import Duration
from kproxy_ipt.config.feature_gates import GATE_DEFAULTS

_SECOND = Duration(1_000_000_000)


def notes_about(document: Document) -> tuple[str, ...]:
    """Everything worth knowing about a valid *document* that needs no facts of the node."""
    return (
        *_mode(document),
        *_feature_gates(document),
        *_cluster_cidr(document),
        *_periods(document),
    )


def _mode(document: Document) -> Iterator[str]:
    if document.mode in {"ipvs", "nftables"}:
        yield (
            f"mode {document.mode} is asked for, but IPTABLES RULES ARE WRITTEN: this program knows no other mode; "
            f"set mode: iptables, or remove what {document.mode} mode of kube-proxy left on the node"
        )
        if document.mode == "nftables" and not document.node_port_addresses:
            yield "nodePortAddresses is unset, which means primary in nftables mode: taken as primary"
        scheduler = document.ipvs.scheduler
        if document.mode == "ipvs" and scheduler not in {"", "rr"} and not document.kproxy_ipt.scheduler:
            yield f"ipvs.scheduler {scheduler} is unknown here: connections are spread at random"


def _feature_gates(document: Document) -> Iterator[str]:
    for gate in sorted(document.feature_gates):
        if gate not in GATE_DEFAULTS:
            yield f"feature gate {gate} is unknown or has no effect here"


def _cluster_cidr(document: Document) -> Iterator[str]:
    entries = document.cluster_cidr.split(",") if document.cluster_cidr else []
    prefixes = [canonical_prefix(entry) for entry in entries]
    if document.detect_local_mode not in {"", "ClusterCIDR"}:
        if None in prefixes or len(prefixes) > 2:
            yield f"clusterCIDR is no CIDR or pair of CIDRs; {document.detect_local_mode} mode does not use it: ignored"
        return
    for prefix in prefixes:
        if prefix and is_zero_prefix(prefix):
            yield (
                f"clusterCIDR {prefix} counts every client as local: "
                "no traffic from outside the cluster would ever be masqueraded"
            )


def _periods(document: Document) -> Iterator[str]:
    periods = active_sync_periods(document)
    if periods.sync_period < _SECOND:
        yield f"syncPeriod {periods.sync_period} is very short: retries and checks will keep the machine busy"
