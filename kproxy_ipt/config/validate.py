"""
What kube-proxy refuses to start with, all problems at once.

Paths are those of the Go type `KubeProxyConfiguration` with the sections named as in the file, so that a reader finds
the field (kube-proxy inserts the names of internal types: `KubeProxyIPTablesConfiguration.MasqueradeBit`).

Source: pkg/proxy/apis/config/validation and component-base/logs/api/v1 of Kubernetes 1.36.
"""

import json
from collections.abc import Iterator

from kproxy_ipt.addresses import canonical_address, canonical_prefix, family_of
from kproxy_ipt.config.document import Document, LoggingSection, OutputSection, Quantity, active_sync_periods
from kproxy_ipt.config.duration import Duration
from kproxy_ipt.config.feature_gates import LOCKED_GATES, is_enabled
from kproxy_ipt.config.host_port import port_number, split_host_port
from kproxy_ipt.config.model import Balance, ConnectionMetrics, Dispatch, Scheduler
from kproxy_ipt.errors import ConfigError

PREVIOUS_MINOR = "1.35"

_MAX_INTERFACE = 15
"""Bytes that the kernel has for the name of an interface."""
_MODES = ("", "iptables", "ipvs", "nftables")
_DETECT_LOCAL_MODES = ("", "BridgeInterface", "ClusterCIDR", "InterfaceNamePrefix", "NodeCIDR")
_REFUSED = {
    (
        "scheduler",
        "sh",
    ): "; the kernel hashes only the first 32 bits of an IPv6 source (xt_cluster), which would "
    "send all clients of a network to one endpoint: use sessionAffinity ClientIP"
}
"""Why a value that IPVS knows is none here."""
_HOUR = Duration(3_600_000_000_000)
_PAIR = "must be a single CIDR or a dual-stack pair of CIDRs (e.g. 10.100.0.0/16,fde4:8dba:82e1::/48)"


def validate(document: Document) -> None:
    """
    Refuse what kube-proxy refuses.

    Args:
        document: With defaults applied; flags may have set values that a file cannot express.

    Raises:
        ConfigError: Every problem, in the order of kube-proxy's own checks, each as
            `KubeProxyConfiguration.IPTables.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]`.
    """
    problems = (
        *_feature_gates(document),
        *_sections(document),
        *_conntrack(document),
        *_single_values(document),
        *_periods(document),
        *_addresses(document),
        *_node_port_addresses(document),
        *_detect_local(document),
        *_logging(document),
        *_shape(document),
    )
    if problems:
        raise ConfigError(tuple(f"KubeProxyConfiguration.{problem}" for problem in problems))


def _shape(document: Document) -> Iterator[str]:
    section = document.kproxy_ipt
    for name, value, known in (
        ("dispatch", section.dispatch, Dispatch),
        ("balance", section.balance, Balance),
        ("scheduler", section.scheduler, Scheduler),
        ("connectionMetrics", section.connection_metrics, ConnectionMetrics),
    ):
        if value and value not in tuple(known):
            supported = ", ".join(json.dumps(one) for one in sorted(known))
            detail = f"Unsupported value: {json.dumps(value)}: supported values: {supported}"
            yield f"KproxyIpt.{name[0].upper()}{name[1:]}: {detail}{_REFUSED.get((name, value), '')}"
    for index, text in enumerate(section.external_ips):
        if canonical_prefix(text) is None:
            yield _invalid(f"KproxyIpt.ExternalIPs[{index}]", text, "must be a valid CIDR")


def _invalid(path: str, value: object, detail: str) -> str:
    shown = f'"{value}"' if isinstance(value, Duration) else json.dumps(value)
    return f"{path}: Invalid value: {shown}: {detail}"


def _in_range(path: str, value: int | None, lowest: int, highest: int) -> Iterator[str]:
    if value is not None and not lowest <= value <= highest:
        yield _invalid(path, value, f"must be within the range [{lowest}, {highest}]")


def _not_negative(path: str, value: int | Duration | None) -> Iterator[str]:
    if isinstance(value, Duration) and value.nanoseconds >= 0:
        return
    if value is None or (isinstance(value, int) and value >= 0):
        return
    yield _invalid(path, value, "must be greater than or equal to 0")


def _positive(path: str, value: Duration) -> Iterator[str]:
    if value.nanoseconds <= 0:
        yield _invalid(path, value, "must be greater than 0")


def _feature_gates(document: Document) -> Iterator[str]:
    for gate, value in document.feature_gates.items():
        if gate in LOCKED_GATES and LOCKED_GATES[gate] is not value:
            locked = "true" if LOCKED_GATES[gate] else "false"
            yield _invalid(f"FeatureGates[{gate}]", value, f"cannot be changed, the gate is locked to {locked}")


def _sections(document: Document) -> Iterator[str]:
    yield from _in_range("IPTables.MasqueradeBit", document.iptables.masquerade_bit, 0, 31)
    if document.mode == "nftables":
        yield from _in_range("NFTables.MasqueradeBit", document.nftables.masquerade_bit, 0, 31)
    if document.mode == "ipvs":
        yield from _not_negative("IPVS.TCPTimeout", document.ipvs.tcp_timeout)
        yield from _not_negative("IPVS.TCPFinTimeout", document.ipvs.tcp_fin_timeout)
        yield from _not_negative("IPVS.UDPTimeout", document.ipvs.udp_timeout)
        for index, prefix in enumerate(document.ipvs.exclude_cidrs):
            if canonical_prefix(prefix) is None:
                yield _invalid(f"IPVS.ExcludeCIDRs[{index}]", prefix, "must be a valid CIDR")


def _conntrack(document: Document) -> Iterator[str]:
    section = document.conntrack
    yield from _not_negative("Conntrack.MaxPerCore", section.max_per_core)
    yield from _not_negative("Conntrack.Min", section.min)
    yield from _not_negative("Conntrack.TCPEstablishedTimeout", section.tcp_established_timeout)
    yield from _not_negative("Conntrack.TCPCloseWaitTimeout", section.tcp_close_wait_timeout)
    yield from _not_negative("Conntrack.UDPTimeout", section.udp_timeout)
    yield from _not_negative("Conntrack.UDPStreamTimeout", section.udp_stream_timeout)


def _single_values(document: Document) -> Iterator[str]:
    yield from _in_range("OOMScoreAdj", document.oom_score_adj, -1000, 1000)
    if document.mode not in _MODES:
        detail = "must be iptables, ipvs, nftables or blank (blank means iptables)"
        yield _invalid("Mode", document.mode, detail)
    yield from _not_negative("ClientConnection.Burst", document.client_connection.burst)
    if document.show_hidden_metrics_for_version not in {"", PREVIOUS_MINOR}:
        detail = f"must be omitted or have the value {PREVIOUS_MINOR}: only the previous minor version is allowed"
        yield _invalid("ShowHiddenMetricsForVersion", document.show_hidden_metrics_for_version, detail)
    if document.hostname_override and not document.hostname_override.strip():
        yield _invalid("HostnameOverride", document.hostname_override, "must not be blank")


def _periods(document: Document) -> Iterator[str]:
    yield from _positive("ConfigSyncPeriod", document.config_sync_period)
    periods = active_sync_periods(document)
    shortest = f"{periods.path}.MinSyncPeriod"
    yield from _positive(f"{periods.path}.SyncPeriod", periods.sync_period)
    yield from _not_negative(shortest, periods.min_sync_period)
    if periods.min_sync_period > periods.sync_period:
        detail = f"must be greater than or equal to {shortest} ({periods.min_sync_period})"
        yield _invalid(f"{periods.path}.SyncPeriod", periods.sync_period, detail)
    if periods.min_sync_period > _HOUR:
        yield _invalid(shortest, periods.min_sync_period, "must be at most 1h0m0s, after which a sync is due anyway")


def _addresses(document: Document) -> Iterator[str]:
    if canonical_address(document.bind_address) is None:
        detail = "not a valid textual representation of an IP address (and no port belongs here)"
        yield _invalid("BindAddress", document.bind_address, detail)
    if document.healthz_bind_address:
        yield from _host_port("HealthzBindAddress", document.healthz_bind_address)
    yield from _host_port("MetricsBindAddress", document.metrics_bind_address)
    if document.kproxy_ipt.status_bind_address:
        yield from _host_port("KproxyIpt.StatusBindAddress", document.kproxy_ipt.status_bind_address)


def _host_port(path: str, text: str) -> Iterator[str]:
    parts = split_host_port(text)
    if parts is None:
        yield _invalid(path, text, "must be IP:port, with an IPv6 address in brackets")
        return
    if canonical_address(parts.host) is None:
        yield _invalid(path, parts.host, "must be a valid IP")
    if port_number(parts.port) is None:
        yield _invalid(path, parts.port, "must be a valid port, in the range [1, 65535]")


def _node_port_addresses(document: Document) -> Iterator[str]:
    for index, entry in enumerate(document.node_port_addresses):
        path = f"NodePortAddresses[{index}]"
        if entry == "primary":
            if len(document.node_port_addresses) > 1:
                yield _invalid(path, entry, "can't use both 'primary' and CIDRs")
            return
        if canonical_prefix(entry) is None:
            yield _invalid(path, entry, "must be a valid CIDR, or the single word 'primary'")


def _detect_local(document: Document) -> Iterator[str]:
    mode = document.detect_local_mode
    if mode not in _DETECT_LOCAL_MODES:
        supported = ", ".join(json.dumps(name) for name in _DETECT_LOCAL_MODES)
        yield f"DetectLocalMode: Unsupported value: {json.dumps(mode)}: supported values: {supported}"
    elif mode == "BridgeInterface":
        yield from _interface("DetectLocal.BridgeInterface", document.detect_local.bridge_interface, _MAX_INTERFACE)
    elif mode == "InterfaceNamePrefix":
        # Rules write it with a plus sign behind, which counts.
        prefix = document.detect_local.interface_name_prefix
        yield from _interface("DetectLocal.InterfaceNamePrefix", prefix, _MAX_INTERFACE - 1)
    elif mode in {"", "ClusterCIDR"} and document.cluster_cidr:
        yield from _cluster_cidr(document.cluster_cidr)


def _interface(path: str, name: str, most: int) -> Iterator[str]:
    """kube-proxy only asks for a name; ours never writes one that the kernel forbids or that breaks a rule."""
    if not name:
        yield _invalid(path, name, "must not be empty in this detectLocalMode")
    elif any(letter.isspace() or not letter.isprintable() or letter in "/:\"'`\\" for letter in name):
        yield _invalid(path, name, "must not hold white space, quotes, '/', ':', '\\' or control characters")
    elif name == "!":
        yield _invalid(path, name, "must not be '!', which negates in a rule")
    elif len(name.encode()) > most:
        yield _invalid(path, f"{name[:most]}...", f"must have at most {most} bytes")


def _cluster_cidr(text: str) -> Iterator[str]:
    entries = text.split(",")
    if len(entries) > 2:
        yield _invalid("ClusterCIDR", text, _PAIR)
        return
    prefixes = [canonical_prefix(entry) for entry in entries]
    for entry, prefix in zip(entries, prefixes, strict=True):
        if prefix is None:
            reason = ", without white space" if entry.strip() != entry else ""
            detail = f"must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48){reason}"
            yield _invalid("ClusterCIDR", entry, detail)
    families = [family_of(prefix) for prefix in prefixes if prefix]
    if len(families) == 2 and families[0] is families[1]:
        yield _invalid("ClusterCIDR", text, f"{_PAIR}, but both are {families[0].api_name}")


def _logging(document: Document) -> Iterator[str]:
    section = document.logging
    if section.format not in {"text", "json"}:
        yield _invalid("Logging.Format", section.format, "unsupported log format: must be text or json")
    yield from _in_range("Logging.Verbosity", section.verbosity, 0, 2**31 - 1)
    yield from _vmodule(section)
    alpha = is_enabled(document.feature_gates, "LoggingAlphaOptions")
    for name, output in (("Text", section.options.text), ("JSON", section.options.json)):
        if not alpha and _differs(output):
            yield f"Logging.Options.{name}: Forbidden: the feature gate LoggingAlphaOptions is disabled"


def _differs(output: OutputSection) -> bool:
    return output.split_stream or not _is_zero(output.info_buffer_size)


def _is_zero(quantity: Quantity) -> bool:
    number = quantity.text.lower().partition("e")[0]
    return not any(digit in number for digit in "123456789")


def _vmodule(section: LoggingSection) -> Iterator[str]:
    if section.vmodule and section.format != "text":
        yield "Logging.VModule: Forbidden: only supported for the text log format"
    for index, entry in enumerate(section.vmodule):
        path = f"Logging.VModule[{index}]"
        if not entry.file_pattern:
            yield f"{path}: Required value: the file pattern must not be empty"
        elif "=" in entry.file_pattern or "," in entry.file_pattern:
            yield _invalid(path, entry.file_pattern, "the file pattern must not contain an equal sign or a comma")
        yield from _in_range(path, entry.verbosity, 0, 2**31 - 1)
