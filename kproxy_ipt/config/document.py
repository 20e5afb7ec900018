"""
`KubeProxyConfiguration` v1alpha1 as on the wire, and the defaults that kube-proxy gives to what is unset.

A `Document` holds anything the types allow, right or wrong; `validate.py` judges it and `build.py` turns it into a
Config. Absent, null and the zero value of Go are the same, except for the pointers, where only None is absent.

Source: k8s.io/kube-proxy/config/v1alpha1 and SetDefaults_KubeProxyConfiguration of Kubernetes 1.36.
"""

from typing import Annotated, TypeVar, cast

import msgspec
from msgspec.structs import replace

from kproxy_ipt.addresses import Family, canonical_address, family_of
from kproxy_ipt.config.duration import Duration
from kproxy_ipt.config.host_port import with_port

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"
HEALTHZ_PORT = 10256
METRICS_PORT = 10249
STATUS_PORT = 10258

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
UInt32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Float32 = Annotated[float, msgspec.Meta(ge=-3.4028234663852886e38, le=3.4028234663852886e38)]


class FlushFrequency(Duration, frozen=True, order=True):
    """The one duration that may also be a number, of nanoseconds."""


class Quantity(msgspec.Struct, frozen=True):
    """A number with an optional unit (`0`, `64Ki`), kept as text."""

    text: str = "0"


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all sections: names in camel case, in the order of Go's fields."""


class ClientConnectionSection(_Section, frozen=True):
    """`clientConnection`."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: Float32 = 0.0
    burst: Int32 = 0


class OutputSection(_Section, frozen=True):
    """`logging.options.text`, `logging.options.json`."""

    split_stream: bool = False
    info_buffer_size: Quantity = Quantity()


class LoggingOptionsSection(_Section, frozen=True):
    """`logging.options`."""

    text: OutputSection = OutputSection()
    json: OutputSection = OutputSection()


class VModuleEntry(_Section, frozen=True):
    """One entry of `logging.vmodule`."""

    file_pattern: str = ""
    verbosity: UInt32 = 0


class LoggingSection(_Section, frozen=True):
    """`logging`."""

    format: str = ""
    flush_frequency: FlushFrequency = FlushFrequency()
    verbosity: UInt32 = 0
    vmodule: tuple[VModuleEntry, ...] = ()
    options: LoggingOptionsSection = LoggingOptionsSection()


class IptablesSection(_Section, frozen=True):
    """`iptables`."""

    masquerade_bit: Int32 | None = None
    masquerade_all: bool = False
    localhost_node_ports: bool | None = None
    sync_period: Duration = Duration()
    min_sync_period: Duration = Duration()


class IpvsSection(_Section, frozen=True):
    """`ipvs`: of interest only where a file of another mode is read."""

    sync_period: Duration = Duration()
    min_sync_period: Duration = Duration()
    scheduler: str = ""
    exclude_cidrs: tuple[str, ...] = msgspec.field(name="excludeCIDRs", default=())
    strict_arp: bool = msgspec.field(name="strictARP", default=False)
    tcp_timeout: Duration = Duration()
    tcp_fin_timeout: Duration = Duration()
    udp_timeout: Duration = Duration()


class NftablesSection(_Section, frozen=True):
    """`nftables`: of interest only where a file of another mode is read."""

    masquerade_bit: Int32 | None = None
    masquerade_all: bool = False
    sync_period: Duration = Duration()
    min_sync_period: Duration = Duration()


class WinkernelSection(_Section, frozen=True):
    """`winkernel`."""

    network_name: str = ""
    source_vip: str = ""
    enable_dsr: bool = msgspec.field(name="enableDSR", default=False)
    root_hns_endpoint_name: str = ""
    forward_health_check_vip: bool = False


class DetectLocalSection(_Section, frozen=True):
    """`detectLocal`."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class ConntrackSection(_Section, frozen=True):
    """`conntrack`."""

    max_per_core: Int32 | None = None
    min: Int32 | None = None
    tcp_established_timeout: Duration | None = None
    tcp_close_wait_timeout: Duration | None = None
    tcp_be_liberal: bool = False
    udp_timeout: Duration = Duration()
    udp_stream_timeout: Duration = Duration()


class KproxyIptSection(_Section, frozen=True):
    """`kproxyIpt`, which kube-proxy passes over with a warning: "" is the default."""

    dispatch: str = ""
    balance: str = ""
    scheduler: str = ""
    connection_metrics: str = ""
    external_ips: tuple[str, ...] = msgspec.field(name="externalIPs", default=())
    status_bind_address: str = ""


class Document(_Section, frozen=True):
    """The whole file."""

    api_version: str = API_VERSION
    kind: str = KIND
    feature_gates: dict[str, bool] = msgspec.field(default_factory=dict)
    client_connection: ClientConnectionSection = ClientConnectionSection()
    logging: LoggingSection = LoggingSection()
    hostname_override: str = ""
    bind_address: str = ""
    healthz_bind_address: str = ""
    metrics_bind_address: str = ""
    bind_address_hard_fail: bool = False
    enable_profiling: bool = False
    show_hidden_metrics_for_version: str = ""
    mode: str = ""
    iptables: IptablesSection = IptablesSection()
    ipvs: IpvsSection = IpvsSection()
    nftables: NftablesSection = NftablesSection()
    winkernel: WinkernelSection = WinkernelSection()
    detect_local_mode: str = ""
    detect_local: DetectLocalSection = DetectLocalSection()
    cluster_cidr: str = msgspec.field(name="clusterCIDR", default="")
    node_port_addresses: tuple[str, ...] = ()
    oom_score_adj: Int32 | None = None
    conntrack: ConntrackSection = ConntrackSection()
    config_sync_period: Duration = Duration()
    port_range: str = ""
    windows_run_as_service: bool = False
    kproxy_ipt: KproxyIptSection = KproxyIptSection()


class SyncPeriods(msgspec.Struct, frozen=True, kw_only=True):
    """`syncPeriod` and `minSyncPeriod` of one section; *path* is that section in a Go field path."""

    path: str
    sync_period: Duration
    min_sync_period: Duration


def active_sync_periods(document: Document) -> SyncPeriods:
    """The periods of the section that the mode of *document* reads."""
    section: IptablesSection | IpvsSection | NftablesSection = document.iptables
    path = "IPTables"
    if document.mode == "ipvs":
        section, path = document.ipvs, "IPVS"
    elif document.mode == "nftables":
        section, path = document.nftables, "NFTables"
    return SyncPeriods(path=path, sync_period=section.sync_period, min_sync_period=section.min_sync_period)


def _seconds(seconds: int) -> Duration:
    return Duration(seconds * 1_000_000_000)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _default_iptables(section: IptablesSection) -> IptablesSection:
    return replace(
        section,
        masquerade_bit=_or(section.masquerade_bit, 14),
        localhost_node_ports=section.localhost_node_ports is not False,
        sync_period=section.sync_period or _seconds(30),
        min_sync_period=section.min_sync_period or _seconds(1),
    )


def _default_nftables(section: NftablesSection) -> NftablesSection:
    return replace(
        section,
        masquerade_bit=_or(section.masquerade_bit, 14),
        sync_period=section.sync_period or _seconds(30),
        min_sync_period=section.min_sync_period or _seconds(1),
    )


def _default_conntrack(section: ConntrackSection) -> ConntrackSection:
    established, close_wait = section.tcp_established_timeout, section.tcp_close_wait_timeout
    return replace(
        section,
        max_per_core=_or(section.max_per_core, 32 * 1024),
        min=_or(section.min, 128 * 1024),
        tcp_established_timeout=_seconds(86_400) if established is None else established,
        tcp_close_wait_timeout=_seconds(3_600) if close_wait is None else close_wait,
    )


def _default_client(section: ClientConnectionSection) -> ClientConnectionSection:
    return replace(
        section,
        content_type=section.content_type or "application/vnd.kubernetes.protobuf",
        qps=section.qps or 5.0,
        burst=section.burst or 10,
    )


def _default_logging(section: LoggingSection) -> LoggingSection:
    return replace(
        section,
        format=section.format or "text",
        flush_frequency=section.flush_frequency or FlushFrequency(5_000_000_000),
    )


def _default_own(section: KproxyIptSection) -> KproxyIptSection:
    return replace(section, status_bind_address=with_port(section.status_bind_address, STATUS_PORT))


def with_defaults(document: Document) -> Document:
    """
    Fill what is unset, as kube-proxy does before it validates.

    The addresses of the health and metrics servers follow the family of `bindAddress`, and get their usual port where
    they have none.
    """
    bind_address = document.bind_address or "0.0.0.0"
    bind_canonical = canonical_address(bind_address)
    is_ipv4 = bind_canonical is not None and family_of(bind_canonical) is Family.IPV4
    everywhere, loopback = ("0.0.0.0", "127.0.0.1") if is_ipv4 else ("::", "::1")
    return replace(
        document,
        bind_address=bind_address,
        healthz_bind_address=with_port(document.healthz_bind_address or everywhere, HEALTHZ_PORT),
        metrics_bind_address=with_port(document.metrics_bind_address or loopback, METRICS_PORT),
        client_connection=_default_client(document.client_connection),
        logging=_default_logging(document.logging),
        iptables=_default_iptables(document.iptables),
        ipvs=replace(document.ipvs, sync_period=document.ipvs.sync_period or _seconds(30)),
        nftables=_default_nftables(document.nftables),
        conntrack=_default_conntrack(document.conntrack),
        oom_score_adj=_or(document.oom_score_adj, -999),
        config_sync_period=document.config_sync_period or _seconds(900),
        kproxy_ipt=_default_own(document.kproxy_ipt),
    )


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def with_value(struct: _Struct, path: str, value: object) -> _Struct:
    """
    A copy of *struct* in which the field at *path* (`iptables.masqueradeBit`) is *value*.

    The caller sees to it that the value has the type of the field.

    Raises:
        KeyError: There is no such field.
    """
    name, _, rest = path.partition(".")
    attribute = {field.encode_name: field.name for field in msgspec.structs.fields(struct)}[name]
    if rest:
        value = with_value(cast("msgspec.Struct", getattr(struct, attribute)), rest, value)
    return replace(struct, **{attribute: value})
