"""
A document with defaults becomes a Config, after validation; the last step for files and for flags.

What only matters in other modes is gone afterwards: `mode` is always `iptables`, and the periods, `masqueradeAll` and
`masqueradeBit` are those of the section that the document's mode reads, so that the ConfigMap of a cluster that runs
ipvs or nftables is usable as it is.
"""

import msgspec

from kproxy_ipt.addresses import canonical_address, canonical_prefix
from kproxy_ipt.config.document import ConntrackSection, Document, LoggingSection, active_sync_periods
from kproxy_ipt.config.duration import Duration
from kproxy_ipt.config.host_port import canonical_host_port
from kproxy_ipt.config.model import (
    Balance,
    ClientConnection,
    Config,
    ConnectionMetrics,
    ConntrackConfig,
    DetectLocalMode,
    Dispatch,
    IptablesConfig,
    LoggingConfig,
    Scheduler,
    ShapeConfig,
    VModuleItem,
)
from kproxy_ipt.config.notes import notes_about
from kproxy_ipt.config.validate import validate


class DecodedConfig(msgspec.Struct, frozen=True):
    """A valid Config, and *notes*: one line each about what was ignored or is odd; never a reason to stop."""

    config: Config
    notes: tuple[str, ...] = ()


def build_config(document: Document, notes: tuple[str, ...] = ()) -> DecodedConfig:
    """
    Validate *document* and turn it into a Config.

    Args:
        document: With defaults applied.
        notes: What was noted before; comes first in the result.

    Raises:
        ConfigError: Every problem, each with its Go field path.
    """
    validate(document)
    return DecodedConfig(_config(document), (*notes, *notes_about(document)))


def _config(document: Document) -> Config:
    return Config(
        feature_gates=dict(sorted(document.feature_gates.items())),
        client_connection=msgspec.convert(document.client_connection, ClientConnection, from_attributes=True),
        logging=_logging(document.logging),
        hostname_override=document.hostname_override,
        bind_address=canonical_address(document.bind_address) or "",
        healthz_bind_address=canonical_host_port(document.healthz_bind_address),
        metrics_bind_address=canonical_host_port(document.metrics_bind_address),
        bind_address_hard_fail=document.bind_address_hard_fail,
        enable_profiling=document.enable_profiling,
        show_hidden_metrics_for_version=document.show_hidden_metrics_for_version,
        iptables=_iptables(document),
        detect_local_mode=DetectLocalMode(document.detect_local_mode or "ClusterCIDR"),
        bridge_interface=document.detect_local.bridge_interface,
        interface_name_prefix=document.detect_local.interface_name_prefix,
        cluster_cidrs=_cluster_cidrs(document.cluster_cidr),
        node_port_addresses=_node_port_addresses(document),
        oom_score_adj=document.oom_score_adj or 0,
        conntrack=_conntrack(document.conntrack),
        config_sync_period_s=document.config_sync_period.seconds,
        shape=_shape(document),
        connection_metrics=ConnectionMetrics(document.kproxy_ipt.connection_metrics or ConnectionMetrics.SERVICE),
        external_ip_ranges=tuple(canonical_prefix(text) or text for text in document.kproxy_ipt.external_ips),
        status_bind_address=canonical_host_port(document.kproxy_ipt.status_bind_address),
    )


def _shape(document: Document) -> ShapeConfig:
    """Round robin may also be asked for where a file was written for ipvs mode."""
    section, usual = document.kproxy_ipt, ShapeConfig()
    inherited = "rr" if document.mode == "ipvs" and document.ipvs.scheduler == "rr" else ""
    return ShapeConfig(
        dispatch=Dispatch(section.dispatch or usual.dispatch),
        balance=Balance(section.balance or usual.balance),
        scheduler=Scheduler(section.scheduler or inherited or usual.scheduler),
    )


def _logging(section: LoggingSection) -> LoggingConfig:
    return LoggingConfig(
        format=section.format,
        verbosity=section.verbosity,
        flush_frequency_s=section.flush_frequency.seconds,
        vmodule=tuple(
            VModuleItem(file_pattern=entry.file_pattern, verbosity=entry.verbosity) for entry in section.vmodule
        ),
    )


def _iptables(document: Document) -> IptablesConfig:
    section = document.nftables if document.mode == "nftables" else document.iptables
    periods = active_sync_periods(document)
    return IptablesConfig(
        masquerade_bit=section.masquerade_bit or 0,
        masquerade_all=section.masquerade_all,
        localhost_node_ports=document.iptables.localhost_node_ports is not False,
        sync_period_s=periods.sync_period.seconds,
        min_sync_period_s=periods.min_sync_period.seconds,
    )


def _cluster_cidrs(text: str) -> tuple[str, ...]:
    """Canonical prefixes; none where a mode that does not use them let a wrong text pass."""
    prefixes = [canonical_prefix(part) for part in text.split(",")] if text else []
    return tuple(prefix for prefix in prefixes if prefix) if None not in prefixes and len(prefixes) <= 2 else ()


def _node_port_addresses(document: Document) -> tuple[str, ...]:
    """Canonical; kube-proxy in nftables mode means `primary` where nothing is set."""
    if document.mode == "nftables" and not document.node_port_addresses:
        return ("primary",)
    return tuple(canonical_prefix(entry) or entry for entry in document.node_port_addresses)


def _conntrack(section: ConntrackSection) -> ConntrackConfig:
    return ConntrackConfig(
        max_per_core=section.max_per_core or 0,
        min=section.min or 0,
        tcp_established_timeout_s=(section.tcp_established_timeout or Duration()).seconds,
        tcp_close_wait_timeout_s=(section.tcp_close_wait_timeout or Duration()).seconds,
        tcp_be_liberal=section.tcp_be_liberal,
        udp_timeout_s=section.udp_timeout.seconds,
        udp_stream_timeout_s=section.udp_stream_timeout.seconds,
    )
