"""
The effective configuration: defaults applied, flags merged, every value checked.

Names follow the fields of `KubeProxyConfiguration` v1alpha1; durations are seconds. Fields that play no part in
iptables mode are not kept: the decoder accepts and reports them.

Source: kubeproxy.config.k8s.io/v1alpha1 of Kubernetes 1.36.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from kproxy_ipt.addresses import prefix_contains


class DetectLocalMode(StrEnum):
    """How traffic from pods of this node is told apart; values as in `detectLocalMode`."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_NAME_PREFIX = "InterfaceNamePrefix"


class ClientConnection(msgspec.Struct, frozen=True, kw_only=True):
    """`clientConnection`; *kubeconfig* "" means in-cluster."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    qps: float = 5.0
    burst: int = 10


class IptablesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`iptables`."""

    masquerade_bit: int = 14
    masquerade_all: bool = False
    localhost_node_ports: bool = True
    sync_period_s: float = 30.0
    min_sync_period_s: float = 1.0


class ConntrackConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`conntrack`; 0 means that the setting of the kernel is left alone."""

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout_s: float = 86400.0
    tcp_close_wait_timeout_s: float = 3600.0
    tcp_be_liberal: bool = False
    udp_timeout_s: float = 0.0
    udp_stream_timeout_s: float = 0.0


class Dispatch(StrEnum):
    """How a packet finds the chain of its Service; values as in `kproxyIpt.dispatch`."""

    LINEAR = "linear"
    """One rule after the other, as kube-proxy."""
    TREE = "tree"
    """By prefixes of addresses and ranges of ports."""
    AUTO = "auto"
    """`LINEAR` until there are many rules."""


class Balance(StrEnum):
    """How the rules of a Service with many endpoints are laid out; values as in `kproxyIpt.balance`."""

    LINEAR = "linear"
    """One rule after the other, as kube-proxy."""
    GROUPED = "grouped"
    """First a group of endpoints, then one of the group."""
    AUTO = "auto"
    """`LINEAR` until there are many endpoints."""


class Scheduler(StrEnum):
    """Who gets the next connection; values as in `kproxyIpt.scheduler`, named like those of IPVS."""

    RANDOM = "random"
    """Anybody, as kube-proxy."""
    RR = "rr"
    """Everybody in turn."""


class ConnectionMetrics(StrEnum):
    """Which series tell about connections; values as in `kproxyIpt.connectionMetrics`."""

    NONE = "none"
    """None, and nothing is counted."""
    SERVICE = "service"
    """One for each service port."""
    ENDPOINT = "endpoint"
    """One for each service port, and one for each of its endpoints."""


class ShapeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`kproxyIpt`: the shape of the rules, which kube-proxy has no field for."""

    dispatch: Dispatch = Dispatch.AUTO
    balance: Balance = Balance.AUTO
    scheduler: Scheduler = Scheduler.RANDOM


class ExternalIPs(msgspec.Struct, frozen=True, kw_only=True):
    """
    Which addresses of `spec.externalIPs` get rules.

    Attributes:
        allowed: The feature gate `AllowServiceExternalIPs`.
        ranges: `kproxyIpt.externalIPs`, canonical prefixes of both families; empty means every address.
    """

    allowed: bool = True
    ranges: tuple[str, ...] = ()

    def permit(self, address: str) -> bool:
        """Whether a canonical address gets rules."""
        return self.allowed and (not self.ranges or any(prefix_contains(prefix, address) for prefix in self.ranges))


class VModuleItem(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `logging.vmodule`."""

    file_pattern: str
    verbosity: int


class LoggingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`logging`."""

    format: str = "text"
    verbosity: int = 0
    flush_frequency_s: float = 5.0
    vmodule: tuple[VModuleItem, ...] = ()


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """
    One node's effective configuration.

    Attributes:
        hostname_override: "" means that the name of the machine is used; see `node_name`.
        cluster_cidrs: `clusterCIDR` split at commas, canonical; at most one of each family.
        node_port_addresses: Canonical prefixes, or the single word `primary`, or empty for all addresses.
        feature_gates: Only those given.
        connection_metrics: `kproxyIpt.connectionMetrics`.
        external_ip_ranges: `kproxyIpt.externalIPs`, canonical; see `ExternalIPs`.
        status_bind_address: `kproxyIpt.statusBindAddress`, "" for no status page.
    """

    feature_gates: Mapping[str, bool] = msgspec.field(default_factory=dict)
    client_connection: ClientConnection = ClientConnection()
    logging: LoggingConfig = LoggingConfig()
    hostname_override: str = ""
    bind_address: str = "0.0.0.0"
    healthz_bind_address: str = "0.0.0.0:10256"
    metrics_bind_address: str = "127.0.0.1:10249"
    bind_address_hard_fail: bool = False
    enable_profiling: bool = False
    show_hidden_metrics_for_version: str = ""
    mode: str = "iptables"
    iptables: IptablesConfig = IptablesConfig()
    detect_local_mode: DetectLocalMode = DetectLocalMode.CLUSTER_CIDR
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    cluster_cidrs: tuple[str, ...] = ()
    node_port_addresses: tuple[str, ...] = ()
    oom_score_adj: int = -999
    conntrack: ConntrackConfig = ConntrackConfig()
    config_sync_period_s: float = 900.0
    shape: ShapeConfig = ShapeConfig()
    connection_metrics: ConnectionMetrics = ConnectionMetrics.SERVICE
    external_ip_ranges: tuple[str, ...] = ()
    status_bind_address: str = ""

    @property
    def external_ips(self) -> ExternalIPs:
        """Which external IPs get rules."""
        allowed = self.feature_gates.get("AllowServiceExternalIPs", True)
        return ExternalIPs(allowed=allowed, ranges=self.external_ip_ranges)
