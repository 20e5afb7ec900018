"""
The flags of kube-proxy, and the few of our own, as a table.

The command line is generated from it, and `flags.py` reads values by it.

Rows say what `kube-proxy --help` of 1.36 says, shortened, in its order. A flag without a path is no field of the
configuration: the command that takes it has to act on it.
"""

from enum import Enum, auto

import msgspec


class FlagKind(Enum):
    """How the text of a flag is read; the syntax is that of Go's pflag."""

    STRING = auto()
    BOOL = auto()
    INT = auto()
    UINT = auto()
    FLOAT = auto()
    DURATION = auto()
    LIST = auto()
    GATES = auto()
    VMODULE = auto()
    IP = auto()
    IP_PORT = auto()
    QUANTITY = auto()


class FlagSpec(msgspec.Struct, frozen=True):
    """
    One flag.

    Attributes:
        name: Without dashes; `v` is written `-v` too.
        path: Field of the configuration in API notation, "" for none. Further ones in *also*.
        kind: BOOL needs no value (`--cleanup`, `--cleanup=false`).
        default: Text as in the help; "" for none.
        help: One or more sentences.
        is_kept: Whether the flag still counts when `--config` is given.
        also: More fields that get the value: sections of other modes whose ConfigMaps we read.
        deprecated: What to use instead, "" if the flag is not deprecated.
    """

    name: str
    path: str
    kind: FlagKind
    default: str
    help: str
    is_kept: bool = False
    also: tuple[str, ...] = ()
    deprecated: str = ""


_RUN = (
    FlagSpec("config", "", FlagKind.STRING, "", "Path of the configuration file.", is_kept=True),
    FlagSpec(
        "write-config-to",
        "",
        FlagKind.STRING,
        "",
        "Write the effective configuration to this file and exit.",
        is_kept=True,
    ),
    FlagSpec(
        "cleanup",
        "",
        FlagKind.BOOL,
        "false",
        "Remove all rules of iptables mode, ours or kube-proxy's, and exit.",
        is_kept=True,
    ),
    FlagSpec(
        "init-only",
        "",
        FlagKind.BOOL,
        "false",
        "Make kernel settings, which need full root privileges, and exit; afterwards CAP_NET_ADMIN is enough.",
        is_kept=True,
    ),
    FlagSpec("master", "", FlagKind.STRING, "", "URL of the API server; overrides the one of the kubeconfig.", True),
    FlagSpec("version", "", FlagKind.BOOL, "false", "Print the version and exit.", is_kept=True),
    FlagSpec(
        "boot-id-file",
        "",
        FlagKind.STRING,
        "/proc/sys/kernel/random/boot_id",
        "Comma-separated list of files to look for the boot id. Accepted, not used.",
        is_kept=True,
    ),
    FlagSpec(
        "machine-id-file",
        "",
        FlagKind.STRING,
        "/etc/machine-id,/var/lib/dbus/machine-id",
        "Comma-separated list of files to look for the machine id. Accepted, not used.",
        is_kept=True,
    ),
    FlagSpec(
        "hostname-override",
        "hostnameOverride",
        FlagKind.STRING,
        "",
        "Name of the Node that this machine is. Unset: the name of the machine.",
        is_kept=True,
    ),
)

_API = (
    FlagSpec(
        "feature-gates",
        "featureGates",
        FlagKind.GATES,
        "",
        "Pairs name=true|false that switch features, comma-separated.",
    ),
    FlagSpec(
        "kubeconfig",
        "clientConnection.kubeconfig",
        FlagKind.STRING,
        "",
        "Path of the kubeconfig file. Unset: $KUBECONFIG, ~/.kube/config, the service account of the pod.",
    ),
    FlagSpec(
        "kube-api-content-type",
        "clientConnection.contentType",
        FlagKind.STRING,
        "application/vnd.kubernetes.protobuf",
        "Content type of requests to the API server. Accepted; JSON is used.",
    ),
    FlagSpec("kube-api-burst", "clientConnection.burst", FlagKind.INT, "10", "Burst of requests to the API server."),
    FlagSpec("kube-api-qps", "clientConnection.qps", FlagKind.FLOAT, "5", "Requests per second to the API server."),
    FlagSpec(
        "config-sync-period",
        "configSyncPeriod",
        FlagKind.DURATION,
        "15m0s",
        "Accepted, not used: watches keep objects up to date. Must be greater than 0.",
    ),
)

_SERVERS = (
    FlagSpec(
        "bind-address",
        "bindAddress",
        FlagKind.IP,
        "0.0.0.0",
        "Overrides the idea of what the primary IP of the node is. Nothing is bound to it.",
    ),
    FlagSpec(
        "healthz-bind-address",
        "healthzBindAddress",
        FlagKind.IP_PORT,
        "0.0.0.0:10256",
        "IP address and port of the health server.",
    ),
    FlagSpec(
        "metrics-bind-address",
        "metricsBindAddress",
        FlagKind.IP_PORT,
        "127.0.0.1:10249",
        "IP address and port of the metrics server.",
    ),
    FlagSpec(
        "healthz-port",
        "",
        FlagKind.INT,
        "10256",
        "Port of the health server where --healthz-bind-address names none. 0 turns the server off.",
        deprecated="use --healthz-bind-address",
    ),
    FlagSpec(
        "metrics-port",
        "",
        FlagKind.INT,
        "10249",
        "Port of the metrics server where --metrics-bind-address names none.",
        deprecated="use --metrics-bind-address",
    ),
    FlagSpec(
        "bind-address-hard-fail",
        "bindAddressHardFail",
        FlagKind.BOOL,
        "false",
        "Exit when a server cannot open its port, instead of trying again.",
    ),
    FlagSpec("profiling", "enableProfiling", FlagKind.BOOL, "false", "Serve /debug/ on the metrics server."),
    FlagSpec(
        "show-hidden-metrics-for-version",
        "showHiddenMetricsForVersion",
        FlagKind.STRING,
        "",
        "The previous minor version. Accepted, without effect: no metric is hidden.",
    ),
)

_RULES = (
    FlagSpec(
        "proxy-mode",
        "mode",
        FlagKind.STRING,
        "",
        "iptables (default). ipvs and nftables are accepted, but iptables rules are written.",
    ),
    FlagSpec(
        "iptables-masquerade-bit",
        "iptables.masqueradeBit",
        FlagKind.INT,
        "14",
        "Bit of the packet mark that asks for masquerading. In the range [0, 31].",
    ),
    FlagSpec(
        "masquerade-all",
        "iptables.masqueradeAll",
        FlagKind.BOOL,
        "false",
        "Masquerade all traffic that is sent to cluster IPs.",
        also=("nftables.masqueradeAll",),
    ),
    FlagSpec(
        "iptables-localhost-nodeports",
        "iptables.localhostNodePorts",
        FlagKind.BOOL,
        "true",
        "Answer node ports on 127.0.0.1 too. IPv4 only.",
    ),
    FlagSpec(
        "iptables-sync-period",
        "iptables.syncPeriod",
        FlagKind.DURATION,
        "30s",
        "Longest wait before a failed sync is tried again; /healthz fails when a change is not written after twice "
        "this time. Nothing is done periodically. Must be greater than 0.",
        also=("nftables.syncPeriod",),
    ),
    FlagSpec(
        "iptables-min-sync-period",
        "iptables.minSyncPeriod",
        FlagKind.DURATION,
        "1s",
        "Shortest time from the end of a sync to the start of the next. 0: none.",
        also=("nftables.minSyncPeriod",),
    ),
    FlagSpec(
        "detect-local-mode",
        "detectLocalMode",
        FlagKind.STRING,
        "",
        "How local traffic is told apart: ClusterCIDR (default), NodeCIDR, BridgeInterface or InterfaceNamePrefix.",
    ),
    FlagSpec(
        "pod-bridge-interface",
        "detectLocal.bridgeInterface",
        FlagKind.STRING,
        "",
        "In mode BridgeInterface: traffic from this bridge is local.",
    ),
    FlagSpec(
        "pod-interface-name-prefix",
        "detectLocal.interfaceNamePrefix",
        FlagKind.STRING,
        "",
        "In mode InterfaceNamePrefix: traffic from interfaces whose names begin so is local.",
    ),
    FlagSpec(
        "cluster-cidr",
        "clusterCIDR",
        FlagKind.STRING,
        "",
        "CIDR of the pods of the cluster, or a dual-stack pair, comma-separated. In mode ClusterCIDR: local traffic.",
    ),
    FlagSpec(
        "nodeport-addresses",
        "nodePortAddresses",
        FlagKind.LIST,
        "",
        "CIDRs of node addresses that answer node ports, or the single word primary. Unset: all addresses.",
    ),
)

_MACHINE = (
    FlagSpec("oom-score-adj", "oomScoreAdj", FlagKind.INT, "-999", "oom_score_adj of this process, in [-1000, 1000]."),
    FlagSpec(
        "conntrack-max-per-core",
        "conntrack.maxPerCore",
        FlagKind.INT,
        "32768",
        "Connections to track per CPU core. 0 leaves the limit as it is and ignores --conntrack-min.",
    ),
    FlagSpec(
        "conntrack-min", "conntrack.min", FlagKind.INT, "131072", "Connections to track at least, whatever the cores."
    ),
    FlagSpec(
        "conntrack-tcp-timeout-established",
        "conntrack.tcpEstablishedTimeout",
        FlagKind.DURATION,
        "24h0m0s",
        "Idle timeout of established TCP connections. 0 leaves it as it is.",
    ),
    FlagSpec(
        "conntrack-tcp-timeout-close-wait",
        "conntrack.tcpCloseWaitTimeout",
        FlagKind.DURATION,
        "1h0m0s",
        "Timeout of TCP connections in CLOSE_WAIT. 0 leaves it as it is.",
    ),
    FlagSpec(
        "conntrack-tcp-be-liberal",
        "conntrack.tcpBeLiberal",
        FlagKind.BOOL,
        "false",
        "Set nf_conntrack_tcp_be_liberal: packets out of window are not invalid.",
    ),
    FlagSpec(
        "conntrack-udp-timeout",
        "conntrack.udpTimeout",
        FlagKind.DURATION,
        "0s",
        "Idle timeout of unreplied UDP connections. 0 leaves it as it is.",
    ),
    FlagSpec(
        "conntrack-udp-timeout-stream",
        "conntrack.udpStreamTimeout",
        FlagKind.DURATION,
        "0s",
        "Idle timeout of assured UDP connections. 0 leaves it as it is.",
    ),
)

_IPVS_HELP = "Of ipvs mode: accepted, without effect."
_IPVS = (
    FlagSpec(
        "ipvs-sync-period",
        "ipvs.syncPeriod",
        FlagKind.DURATION,
        "30s",
        "Takes the place of --iptables-sync-period if the mode is ipvs.",
    ),
    FlagSpec(
        "ipvs-min-sync-period",
        "ipvs.minSyncPeriod",
        FlagKind.DURATION,
        "1s",
        "Takes the place of --iptables-min-sync-period if the mode is ipvs.",
    ),
    FlagSpec(
        "ipvs-scheduler",
        "ipvs.scheduler",
        FlagKind.STRING,
        "",
        "rr takes the place of --scheduler if the mode is ipvs; others are accepted, without effect.",
    ),
    FlagSpec("ipvs-exclude-cidrs", "ipvs.excludeCIDRs", FlagKind.LIST, "", _IPVS_HELP),
    FlagSpec("ipvs-strict-arp", "ipvs.strictARP", FlagKind.BOOL, "false", _IPVS_HELP),
    FlagSpec("ipvs-tcp-timeout", "ipvs.tcpTimeout", FlagKind.DURATION, "0s", _IPVS_HELP),
    FlagSpec("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", FlagKind.DURATION, "0s", _IPVS_HELP),
    FlagSpec("ipvs-udp-timeout", "ipvs.udpTimeout", FlagKind.DURATION, "0s", _IPVS_HELP),
)

_ALPHA = "Needs the feature gate LoggingAlphaOptions. Accepted, without effect."
_LOGGING = (
    FlagSpec("v", "logging.verbosity", FlagKind.UINT, "0", "Verbosity of the log; from 2 on every step.", True),
    FlagSpec(
        "vmodule",
        "logging.vmodule",
        FlagKind.VMODULE,
        "",
        "Pairs pattern=N, comma-separated. Accepted, without effect. Text format only.",
        is_kept=True,
    ),
    FlagSpec(
        "logging-format",
        "logging.format",
        FlagKind.STRING,
        "text",
        "text: lines for people on a terminal, JSON lines elsewhere. json: JSON lines.",
        is_kept=True,
    ),
    FlagSpec(
        "log-flush-frequency",
        "logging.flushFrequency",
        FlagKind.DURATION,
        "5s",
        "Accepted, not used: each line is written at once.",
        is_kept=True,
    ),
    *(
        spec
        for form in ("text", "json")
        for spec in (
            FlagSpec(
                f"log-{form}-split-stream", f"logging.options.{form}.splitStream", FlagKind.BOOL, "false", _ALPHA, True
            ),
            FlagSpec(
                f"log-{form}-info-buffer-size",
                f"logging.options.{form}.infoBufferSize",
                FlagKind.QUANTITY,
                "0",
                _ALPHA,
                is_kept=True,
            ),
        )
    ),
)

_SHAPE = (
    FlagSpec(
        "dispatch",
        "kproxyIpt.dispatch",
        FlagKind.STRING,
        "auto",
        "How a packet finds its Service: linear, one rule after the other, as kube-proxy; tree, by prefixes of "
        "addresses; auto, linear until there are many. Not a flag of kube-proxy.",
        is_kept=True,
    ),
    FlagSpec(
        "balance",
        "kproxyIpt.balance",
        FlagKind.STRING,
        "auto",
        "How endpoints are laid out: linear, one rule after the other, as kube-proxy; grouped, in groups; auto, linear "
        "until there are many. Not a flag of kube-proxy.",
        is_kept=True,
    ),
    FlagSpec(
        "scheduler",
        "kproxyIpt.scheduler",
        FlagKind.STRING,
        "random",
        "Who gets the next connection: random, as kube-proxy; rr, everybody in turn. Not a flag of kube-proxy.",
        is_kept=True,
    ),
    FlagSpec(
        "connection-metrics",
        "kproxyIpt.connectionMetrics",
        FlagKind.STRING,
        "service",
        "Which metrics tell about connections: service, one series for each port of a Service; endpoint, one for each "
        "endpoint as well; none, and nothing is counted. Not a flag of kube-proxy.",
        is_kept=True,
    ),
    FlagSpec(
        "external-ips",
        "kproxyIpt.externalIPs",
        FlagKind.LIST,
        "",
        "Prefixes that the externalIPs of Services must be in to get rules; unset: every address, as kube-proxy. Not a "
        "flag of kube-proxy.",
        is_kept=True,
    ),
    FlagSpec(
        "status-bind-address",
        "kproxyIpt.statusBindAddress",
        FlagKind.IP_PORT,
        "",
        "IP address and port (10258 if none is named) of the read-only status page; unset: there is none. It asks for "
        "no password: 127.0.0.1 is the place for it. Not a flag of kube-proxy.",
        is_kept=True,
    ),
)

FLAGS: tuple[FlagSpec, ...] = (*_RUN, *_API, *_SERVERS, *_RULES, *_MACHINE, *_IPVS, *_LOGGING, *_SHAPE)

FLAGS_BY_NAME: dict[str, FlagSpec] = {spec.name: spec for spec in FLAGS}
