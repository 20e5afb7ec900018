"""
A Config becomes a `KubeProxyConfiguration` v1alpha1 again, as kube-proxy's `--write-config-to` and `/configz` show it.

`decode_config` reads the result back to the same Config, with three exceptions that the file format cannot express:
`minSyncPeriod` 0 (reads as 1s), a health server that is turned off, and durations finer than a nanosecond.
"""

import msgspec
import yaml

from kproxy_ipt.config.document import (
    ClientConnectionSection,
    ConntrackSection,
    DetectLocalSection,
    Document,
    FlushFrequency,
    IptablesSection,
    KproxyIptSection,
    LoggingSection,
    NftablesSection,
    Quantity,
    VModuleEntry,
)
from kproxy_ipt.config.document_text import reads_as_text
from kproxy_ipt.config.duration import Duration, duration_of
from kproxy_ipt.config.model import Config, ConnectionMetrics, ShapeConfig

# The tags of Go that say `omitempty`, of those fields that can be empty here.
_OMITTED_IF_EMPTY = frozenset(
    {"featureGates", "vmodule", "splitStream", "windowsRunAsService", "externalIPs", "statusBindAddress"}
)
_OMITTED_IF_USUAL = frozenset({"kproxyIpt", "dispatch", "balance", "scheduler", "connectionMetrics"})
_NULL_IF_EMPTY = frozenset({"nodePortAddresses", "excludeCIDRs"})


def config_document(config: Config) -> dict[str, object]:
    """
    The effective document as plain values for JSON: names of the API, in alphabetical order at every level.

    Durations are Go texts (`1m0s`), unset lists are None, as kube-proxy writes them.
    """
    return _section(_document(config))


def encode_config(config: Config) -> str:
    """The effective document as YAML text that ends in a line feed."""
    document = config_document(config)
    return yaml.dump(document, Dumper=_Dumper, default_flow_style=False, sort_keys=True, width=2**31)


class _Dumper(yaml.SafeDumper):
    """Quotes what Go would take for another type."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  (the signature is PyYAML's)
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if reads_as_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text_node)


def _section(section: msgspec.Struct) -> dict[str, object]:
    values: dict[str, object] = {}
    for field in sorted(msgspec.structs.fields(section), key=lambda field: field.encode_name):
        value: object = getattr(section, field.name)
        if not value and field.encode_name in _OMITTED_IF_EMPTY:
            continue
        if field.encode_name in _OMITTED_IF_USUAL and value in ("", KproxyIptSection()):
            continue
        values[field.encode_name] = None if value == () and field.encode_name in _NULL_IF_EMPTY else _plain(value)
    return values


def _plain(value: object) -> object:
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, Quantity):
        return value.text
    if isinstance(value, msgspec.Struct):
        return _section(value)
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def _document(config: Config) -> Document:
    return Document(
        feature_gates=dict(sorted(config.feature_gates.items())),
        client_connection=msgspec.convert(config.client_connection, ClientConnectionSection, from_attributes=True),
        logging=_logging(config),
        hostname_override=config.hostname_override,
        bind_address=config.bind_address,
        healthz_bind_address=config.healthz_bind_address,
        metrics_bind_address=config.metrics_bind_address,
        bind_address_hard_fail=config.bind_address_hard_fail,
        enable_profiling=config.enable_profiling,
        show_hidden_metrics_for_version=config.show_hidden_metrics_for_version,
        mode=config.mode,
        iptables=_iptables(config),
        nftables=NftablesSection(masquerade_bit=14),
        detect_local_mode=str(config.detect_local_mode),
        detect_local=DetectLocalSection(
            bridge_interface=config.bridge_interface, interface_name_prefix=config.interface_name_prefix
        ),
        cluster_cidr=",".join(config.cluster_cidrs),
        node_port_addresses=config.node_port_addresses,
        oom_score_adj=config.oom_score_adj,
        conntrack=_conntrack(config),
        config_sync_period=duration_of(config.config_sync_period_s),
        kproxy_ipt=_own_section(config),
    )


def _own_section(config: Config) -> KproxyIptSection:
    """What differs from the default, so that the usual document is that of kube-proxy."""
    usual = ShapeConfig()
    given = {
        field.name: str(value)
        for field in msgspec.structs.fields(ShapeConfig)
        if (value := getattr(config.shape, field.name)) != getattr(usual, field.name)
    }
    metrics = config.connection_metrics
    return KproxyIptSection(
        **given,
        connection_metrics="" if metrics is ConnectionMetrics.SERVICE else str(metrics),
        external_ips=config.external_ip_ranges,
        status_bind_address=config.status_bind_address,
    )


def _logging(config: Config) -> LoggingSection:
    logging = config.logging
    return LoggingSection(
        format=logging.format,
        flush_frequency=FlushFrequency(duration_of(logging.flush_frequency_s).nanoseconds),
        verbosity=logging.verbosity,
        vmodule=tuple(
            VModuleEntry(file_pattern=entry.file_pattern, verbosity=entry.verbosity) for entry in logging.vmodule
        ),
    )


def _iptables(config: Config) -> IptablesSection:
    iptables = config.iptables
    return IptablesSection(
        masquerade_bit=iptables.masquerade_bit,
        masquerade_all=iptables.masquerade_all,
        localhost_node_ports=iptables.localhost_node_ports,
        sync_period=duration_of(iptables.sync_period_s),
        min_sync_period=duration_of(iptables.min_sync_period_s),
    )


def _conntrack(config: Config) -> ConntrackSection:
    conntrack = config.conntrack
    return ConntrackSection(
        max_per_core=conntrack.max_per_core,
        min=conntrack.min,
        tcp_established_timeout=duration_of(conntrack.tcp_established_timeout_s),
        tcp_close_wait_timeout=duration_of(conntrack.tcp_close_wait_timeout_s),
        tcp_be_liberal=conntrack.tcp_be_liberal,
        udp_timeout=duration_of(conntrack.udp_timeout_s),
        udp_stream_timeout=duration_of(conntrack.udp_stream_timeout_s),
    )
