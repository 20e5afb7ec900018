"""What kube-proxy refuses is refused, everything in one error, each problem with its field path."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from kproxy_ipt.config.build import DecodedConfig

Decode: TypeAlias = Callable[[str], DecodedConfig]
Problems: TypeAlias = Callable[[str], tuple[str, ...]]

BRIDGE = "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: %s}"
PREFIX = "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: %s}"

# Fields that are refused, and the one problem they cause.
REFUSED = {
    "featureGates: {MultiCIDRServiceAllocator: false}": "FeatureGates[MultiCIDRServiceAllocator]: Invalid value: false",
    "featureGates: {PreferSameTrafficDistribution: false}": "FeatureGates[PreferSameTrafficDistribution]: Invalid",
    "clientConnection: {burst: -1}": "ClientConnection.Burst: Invalid value: -1: must be greater than or equal to 0",
    "logging: {format: xml}": 'Logging.Format: Invalid value: "xml": unsupported log format',
    "logging: {verbosity: 2147483648}": "Logging.Verbosity: Invalid value: 2147483648: must be within the range",
    "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}": "Logging.VModule: Forbidden",
    "logging: {vmodule: [{verbosity: 1}]}": "Logging.VModule[0]: Required value",
    'logging: {vmodule: [{filePattern: "a=b", verbosity: 1}]}': 'Logging.VModule[0]: Invalid value: "a=b"',
    "logging: {options: {text: {splitStream: true}}}": "Logging.Options.Text: Forbidden",
    "logging: {options: {json: {infoBufferSize: 64Ki}}}": "Logging.Options.JSON: Forbidden",
    'hostnameOverride: "  "': 'HostnameOverride: Invalid value: "  ": must not be blank',
    "bindAddress: 10.10.12.11:2000": 'BindAddress: Invalid value: "10.10.12.11:2000": not a valid textual',
    "healthzBindAddress: '[fd00::1]'": 'HealthzBindAddress: Invalid value: "[fd00::1]": must be IP:port',
    "healthzBindAddress: example:1": 'HealthzBindAddress: Invalid value: "example": must be a valid IP',
    "healthzBindAddress: 0.0.0.0:0": 'HealthzBindAddress: Invalid value: "0": must be a valid port',
    "kproxyIpt: {statusBindAddress: 'localhost:80'}": 'KproxyIpt.StatusBindAddress: Invalid value: "localhost": must',
    "metricsBindAddress: 0.0.0.0:65536": 'MetricsBindAddress: Invalid value: "65536": must be a valid port',
    "metricsBindAddress: 0.0.0.0:http": 'MetricsBindAddress: Invalid value: "http": must be a valid port',
    "showHiddenMetricsForVersion: '1.36'": 'ShowHiddenMetricsForVersion: Invalid value: "1.36"',
    "mode: userspace": 'Mode: Invalid value: "userspace": must be iptables, ipvs, nftables or blank',
    "kproxyIpt: {dispatch: star}": 'KproxyIpt.Dispatch: Unsupported value: "star": supported values: "auto", "linear"',
    "kproxyIpt: {scheduler: wlc}": 'KproxyIpt.Scheduler: Unsupported value: "wlc"',
    "kproxyIpt: {connectionMetrics: pod}": 'KproxyIpt.ConnectionMetrics: Unsupported value: "pod": supported values: '
    '"endpoint", "none", "service"',
    "kproxyIpt: {scheduler: sh}": 'KproxyIpt.Scheduler: Unsupported value: "sh": supported values: "random", "rr"; ',
    "iptables: {masqueradeBit: 32}": "IPTables.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]",
    "iptables: {masqueradeBit: -1}": "IPTables.MasqueradeBit: Invalid value: -1: must be within the range [0, 31]",
    "mode: ipvs\niptables: {masqueradeBit: 32}": "IPTables.MasqueradeBit: Invalid value: 32",
    "mode: nftables\nnftables: {masqueradeBit: 32}": "NFTables.MasqueradeBit: Invalid value: 32",
    "iptables: {syncPeriod: 30s, minSyncPeriod: 60s}": 'IPTables.SyncPeriod: Invalid value: "30s": must be greater',
    "iptables: {syncPeriod: 1ms}": 'IPTables.SyncPeriod: Invalid value: "1ms": must be greater than or equal to',
    "iptables: {minSyncPeriod: -1s}": 'IPTables.MinSyncPeriod: Invalid value: "-1s": must be greater than or',
    "iptables: {syncPeriod: 3h, minSyncPeriod: 2h}": 'IPTables.MinSyncPeriod: Invalid value: "2h0m0s": must be at most',
    "mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}": 'IPVS.SyncPeriod: Invalid value: "1s"',
    "mode: nftables\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}": 'NFTables.SyncPeriod: Invalid value: "1s"',
    "mode: ipvs\nipvs: {tcpTimeout: -1s}": "IPVS.TCPTimeout: Invalid value",
    "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, x]}": "IPVS.ExcludeCIDRs[1]: Invalid value",
    "detectLocalMode: Magic": 'DetectLocalMode: Unsupported value: "Magic": supported values: "", "BridgeInterface"',
    "detectLocalMode: BridgeInterface": 'DetectLocal.BridgeInterface: Invalid value: "": must not be empty',
    "detectLocalMode: InterfaceNamePrefix": 'DetectLocal.InterfaceNamePrefix: Invalid value: "": must not be empty',
    BRIDGE % "'a b'": "DetectLocal.BridgeInterface: Invalid value",
    BRIDGE % "a/b": "DetectLocal.BridgeInterface: Invalid value",
    BRIDGE % "'a\"b'": "DetectLocal.BridgeInterface: Invalid value",
    PREFIX % '"a\\tb"': "DetectLocal.InterfaceNamePrefix: Invalid value",
    PREFIX % ("p" * 15): 'DetectLocal.InterfaceNamePrefix: Invalid value: "pppppppppppppp...": must have at most 14',
    PREFIX % ("é" * 8): "DetectLocal.InterfaceNamePrefix: Invalid value",
    PREFIX % '"!"': 'DetectLocal.InterfaceNamePrefix: Invalid value: "!": must not be',
    BRIDGE % ("b" * 16): "DetectLocal.BridgeInterface: Invalid value",
    PREFIX % '"a\\x01b"': "DetectLocal.InterfaceNamePrefix: Invalid value",
    "clusterCIDR: x": 'ClusterCIDR: Invalid value: "x": must be a valid CIDR block',
    "clusterCIDR: 10.244.0.0": 'ClusterCIDR: Invalid value: "10.244.0.0": must be a valid CIDR block',
    "clusterCIDR: 10.0.0.0/8,": 'ClusterCIDR: Invalid value: "": must be a valid CIDR block',
    "clusterCIDR: 10.244.0.0/16, fd00::/64": 'ClusterCIDR: Invalid value: " fd00::/64"',
    "clusterCIDR: 10.0.0.0/8,fd00::/64,fd01::/64": "ClusterCIDR: Invalid value",
    "nodePortAddresses: [primary, 10.0.0.0/8]": 'NodePortAddresses[0]: Invalid value: "primary": can\'t use both',
    "nodePortAddresses: [10.0.0.0/8, primary]": 'NodePortAddresses[1]: Invalid value: "primary": can\'t use both',
    "nodePortAddresses: [10.0.0.0/8, 10.0.0.1]": 'NodePortAddresses[1]: Invalid value: "10.0.0.1": must be a valid',
    "oomScoreAdj: 1001": "OOMScoreAdj: Invalid value: 1001: must be within the range [-1000, 1000]",
    "oomScoreAdj: -1001": "OOMScoreAdj: Invalid value: -1001: must be within the range [-1000, 1000]",
    "conntrack: {maxPerCore: -1}": "Conntrack.MaxPerCore: Invalid value: -1: must be greater than or equal to 0",
    "conntrack: {min: -1}": "Conntrack.Min: Invalid value: -1: must be greater than or equal to 0",
    "conntrack: {tcpEstablishedTimeout: -1s}": 'Conntrack.TCPEstablishedTimeout: Invalid value: "-1s"',
    "conntrack: {tcpCloseWaitTimeout: -1s}": 'Conntrack.TCPCloseWaitTimeout: Invalid value: "-1s"',
    "conntrack: {udpTimeout: -1s}": 'Conntrack.UDPTimeout: Invalid value: "-1s"',
    "conntrack: {udpStreamTimeout: -1s}": 'Conntrack.UDPStreamTimeout: Invalid value: "-1s"',
    "configSyncPeriod: -1s": 'ConfigSyncPeriod: Invalid value: "-1s": must be greater than 0',
}

ACCEPTED = (
    "featureGates: {MultiCIDRServiceAllocator: true}",
    "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {text: {splitStream: true}}}",
    "featureGates: {AllAlpha: true}\nlogging: {options: {json: {infoBufferSize: 64Ki}}}",
    "logging: {options: {json: {infoBufferSize: 0Ki}}}",
    "iptables: {masqueradeBit: 31}",
    "oomScoreAdj: -1000",
    "oomScoreAdj: 1000",
    "metricsBindAddress: 0.0.0.0:65535",
    "clusterCIDR: 010.0.0.0/8",
    "iptables: {syncPeriod: 1s, minSyncPeriod: 1s}",
    BRIDGE % "br0.100",
)


@pytest.mark.parametrize(("fields", "problem"), REFUSED.items())
def test_value_is_refused_with_its_path(problems: Problems, fields: str, problem: str) -> None:
    """One wrong value is exactly one problem, that begins with the field path."""
    found = problems(fields)

    assert len(found) == 1
    assert found[0].startswith(f"KubeProxyConfiguration.{problem}")


@pytest.mark.parametrize("fields", ACCEPTED)
def test_limit_is_accepted(decode: Decode, fields: str) -> None:
    """The outermost valid values pass without a note."""
    assert decode(fields).notes == ()


@pytest.mark.parametrize("pair", ["10.0.0.0/8,10.1.0.0/16", "fd00::/64,fd01::/64"])
def test_pair_of_one_family_is_refused_and_the_family_named(problems: Problems, pair: str) -> None:
    """The error says which family both ranges have."""
    family = "IPv6" if ":" in pair else "IPv4"

    assert problems(f"clusterCIDR: {pair}")[0].endswith(f"but both are {family}")


def test_negative_sync_period_is_two_problems(problems: Problems) -> None:
    """It is not positive, and it is below the shortest gap."""
    assert [problem.split(": ")[0] for problem in problems("iptables: {syncPeriod: -1s}")] == [
        "KubeProxyConfiguration.IPTables.SyncPeriod",
        "KubeProxyConfiguration.IPTables.SyncPeriod",
    ]


def test_all_problems_are_reported_together(problems: Problems) -> None:
    """Independent mistakes need one attempt, not several."""
    found = problems("oomScoreAdj: 2000\niptables: {masqueradeBit: 32}\nclusterCIDR: x\nmode: other\nbindAddress: z\n")

    assert len(found) == 5


def test_range_is_not_checked_in_a_mode_that_does_not_use_it(decode: Decode) -> None:
    """As in kube-proxy; the unusable range is dropped and noted."""
    decoded = decode("detectLocalMode: NodeCIDR\nclusterCIDR: x\n")

    assert decoded.config.cluster_cidrs == ()
    assert decoded.notes == ("clusterCIDR is no CIDR or pair of CIDRs; NodeCIDR mode does not use it: ignored",)
