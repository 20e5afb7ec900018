"""A configuration file becomes a Config, as strictly as in kube-proxy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from kproxy_ipt.config.build import DecodedConfig
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.model import (
    ClientConnection,
    Config,
    ConntrackConfig,
    DetectLocalMode,
    IptablesConfig,
    LoggingConfig,
    VModuleItem,
)
from kproxy_ipt.errors import ConfigError

Decode: TypeAlias = Callable[[str], DecodedConfig]
Problems: TypeAlias = Callable[[str], tuple[str, ...]]

DEFAULT = Config()

# Field by field of the reference table: a value that is not the default, and what it changes.
FIELDS = {
    "featureGates: {AllowServiceExternalIPs: false}": {"feature_gates": {"AllowServiceExternalIPs": False}},
    "clientConnection: {kubeconfig: /k, acceptContentTypes: a, contentType: b, qps: 7.5, burst: 3}": {
        "client_connection": ClientConnection(
            kubeconfig="/k", accept_content_types="a", content_type="b", qps=7.5, burst=3
        )
    },
    "logging: {format: json, flushFrequency: 2s, verbosity: 4}": {
        "logging": LoggingConfig(format="json", flush_frequency_s=2.0, verbosity=4)
    },
    "logging: {flushFrequency: 1500000000}": {"logging": LoggingConfig(flush_frequency_s=1.5)},
    "logging: {vmodule: [{filePattern: foo, verbosity: 2}]}": {
        "logging": LoggingConfig(vmodule=(VModuleItem(file_pattern="foo", verbosity=2),))
    },
    "hostnameOverride: Node-1": {"hostname_override": "Node-1"},
    "bindAddress: 10.0.0.1": {"bind_address": "10.0.0.1"},
    'bindAddress: "::"': {
        "bind_address": "::",
        "healthz_bind_address": "[::]:10256",
        "metrics_bind_address": "[::1]:10249",
    },
    "healthzBindAddress: 10.0.0.1": {"healthz_bind_address": "10.0.0.1:10256"},
    "healthzBindAddress: FD00::0A": {"healthz_bind_address": "[fd00::a]:10256"},
    "metricsBindAddress: 0.0.0.0": {"metrics_bind_address": "0.0.0.0:10249"},
    'metricsBindAddress: "[::]:9"': {"metrics_bind_address": "[::]:9"},
    "bindAddressHardFail: true": {"bind_address_hard_fail": True},
    "enableProfiling: yes": {"enable_profiling": True},
    'showHiddenMetricsForVersion: "1.35"': {"show_hidden_metrics_for_version": "1.35"},
    "iptables: {masqueradeBit: 0, masqueradeAll: true, localhostNodePorts: false}": {
        "iptables": IptablesConfig(masquerade_bit=0, masquerade_all=True, localhost_node_ports=False)
    },
    "iptables: {syncPeriod: 1m, minSyncPeriod: 250ms}": {
        "iptables": IptablesConfig(sync_period_s=60.0, min_sync_period_s=0.25)
    },
    "iptables: {minSyncPeriod: 0s}": {},
    "detectLocalMode: NodeCIDR": {"detect_local_mode": DetectLocalMode.NODE_CIDR},
    "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}": {
        "detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE,
        "bridge_interface": "cni0",
    },
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}": {
        "detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX,
        "interface_name_prefix": "veth",
    },
    "clusterCIDR: 10.244.0.0/16": {"cluster_cidrs": ("10.244.0.0/16",)},
    "clusterCIDR: 10.244.0.0/16,fd00:10:244::/56": {"cluster_cidrs": ("10.244.0.0/16", "fd00:10:244::/56")},
    "clusterCIDR: fd00:10:244::/56,10.244.7.9/16": {"cluster_cidrs": ("fd00:10:244::/56", "10.244.0.0/16")},
    "nodePortAddresses: [primary]": {"node_port_addresses": ("primary",)},
    "nodePortAddresses: [127.0.0.0/8, fd00:31::/64]": {"node_port_addresses": ("127.0.0.0/8", "fd00:31::/64")},
    "oomScoreAdj: 0": {"oom_score_adj": 0},
    "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}": {
        "conntrack": ConntrackConfig(max_per_core=0, min=0, tcp_established_timeout_s=0.0, tcp_close_wait_timeout_s=0.0)
    },
    "conntrack: {tcpBeLiberal: true, udpTimeout: 30s, udpStreamTimeout: 2m}": {
        "conntrack": ConntrackConfig(tcp_be_liberal=True, udp_timeout_s=30.0, udp_stream_timeout_s=120.0)
    },
    "configSyncPeriod: 1h": {"config_sync_period_s": 3600.0},
    "mode: iptables": {},
}

WRONG_TYPES = {
    "iptables: {syncPeriod: 30}": "iptables.syncPeriod: found 30, expected a duration",
    "iptables: {minSyncPeriod: 0}": "iptables.minSyncPeriod: found 0, expected a duration",
    'configSyncPeriod: ""': 'configSyncPeriod: found "", expected a duration',
    "conntrack: {udpTimeout: 5 s}": 'conntrack.udpTimeout: found "5 s", expected a duration',
    "iptables: {masqueradeBit: a}": "iptables.masqueradeBit: found",
    "iptables: {masqueradeBit: 1.5}": "iptables.masqueradeBit: found",
    "iptables: {masqueradeBit: 2147483648}": "iptables.masqueradeBit: found",
    "iptables: []": "iptables: found a list, expected a mapping",
    "clusterCIDR: 10": "clusterCIDR: found 10",
    "enableProfiling: 1": "enableProfiling: found 1",
    "nodePortAddresses: primary": 'nodePortAddresses: found "primary"',
    "nodePortAddresses: [1]": "nodePortAddresses: found a list",
    "featureGates: {A: 1}": "featureGates: found a mapping",
    "logging: {verbosity: -1}": "logging.verbosity: found -1",
    "logging: {flushFrequency: true}": "logging.flushFrequency: found true",
    "logging: {vmodule: x}": "logging.vmodule: found",
    "logging: {vmodule: [{verbosity: x}]}": "logging.vmodule[0].verbosity: found",
    "logging: {options: {json: {infoBufferSize: much}}}": "logging.options.json.infoBufferSize: found",
    "clientConnection: {qps: 1e39}": "clientConnection.qps: found",
}

WRONG_KINDS = (
    b"",
    b"---\n---\nkind: KubeProxyConfiguration\n",
    b"[]",
    b"text",
    b"kind: KubeProxyConfiguration\n",
    b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\n",
    b"apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n",
    b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n",
)


@pytest.mark.parametrize(("fields", "changes"), FIELDS.items())
def test_field_changes_its_part_of_the_config(decode: Decode, fields: str, changes: dict[str, object]) -> None:
    """Each field does what the reference says, and nothing is odd about it."""
    assert decode(fields) == DecodedConfig(replace(DEFAULT, **changes))


def test_file_without_fields_is_the_default(decode: Decode) -> None:
    """Kind and version alone mean kube-proxy's defaults."""
    assert decode("") == DecodedConfig(DEFAULT)


def test_file_that_kubeadm_writes_is_the_default() -> None:
    """Nulls, zeros and empty strings are unset; only kubeconfig and pod range are really given."""
    text = Path(__file__).with_name("kubeadm-config.conf").read_bytes()

    expected = replace(
        DEFAULT,
        client_connection=ClientConnection(kubeconfig="/var/lib/kube-proxy/kubeconfig.conf"),
        cluster_cidrs=("10.244.0.0/16",),
    )
    assert decode_config(text, "config.conf") == DecodedConfig(expected)


@pytest.mark.parametrize(("fields", "problem"), WRONG_TYPES.items())
def test_value_of_a_wrong_type_is_refused(problems: Problems, fields: str, problem: str) -> None:
    """The problem names file, field and what was found."""
    found = problems(fields)

    assert len(found) == 1
    assert found[0].startswith(f"proxy.conf: {problem}")


@pytest.mark.parametrize("text", WRONG_KINDS)
def test_another_kind_or_version_is_refused(text: bytes) -> None:
    """Only kubeproxy.config.k8s.io/v1alpha1 KubeProxyConfiguration is read."""
    with pytest.raises(ConfigError, match="expected"):
        decode_config(text, "proxy.conf")


def test_all_wrong_types_are_reported_together(problems: Problems) -> None:
    """A reader fixes them in one go."""
    assert len(problems("iptables: {syncPeriod: 30, masqueradeBit: x}\nmode: 5\n")) == 3


def test_unknown_field_is_noted(decode: Decode) -> None:
    """kube-proxy goes on after unknown fields; so do we, and say which."""
    decoded = decode("foo: 1\niptables: {bar: {baz: 1}, masqueradeBit: 3}\n")

    assert decoded.config.iptables.masquerade_bit == 3
    assert decoded.notes == (
        'proxy.conf: unknown field "foo" is ignored',
        'proxy.conf: unknown field "iptables.bar" is ignored',
    )


def test_last_duplicate_field_wins(decode: Decode) -> None:
    """The lenient decoding of kube-proxy keeps the last one."""
    decoded = decode("oomScoreAdj: 1\noomScoreAdj: 2\n")

    assert decoded.config.oom_score_adj == 2
    assert decoded.notes == ('proxy.conf: duplicate field "oomScoreAdj" in line 4: the last one counts',)


def test_json_is_read_like_yaml() -> None:
    """The same document in JSON gives the same Config."""
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "oomScoreAdj": 5,
        "iptables": {"syncPeriod": "1m0s"},
    }
    expected = replace(DEFAULT, oom_score_adj=5, iptables=IptablesConfig(sync_period_s=60.0))

    assert decode_config(json.dumps(document).encode(), "x") == DecodedConfig(expected)


def test_fields_without_part_in_iptables_mode_are_noted_when_set(decode: Decode) -> None:
    """Settings of other modes and platforms are accepted, and named where they are not at their default."""
    decoded = decode(
        "ipvs: {scheduler: rr, syncPeriod: 30s}\nnftables: {masqueradeBit: 3}\nportRange: 1-2\n"
        "windowsRunAsService: true\nwinkernel: {networkName: net}\n"
    )

    assert decoded.config == DEFAULT
    assert decoded.notes == tuple(
        f"proxy.conf: {path} plays no part in iptables mode"
        for path in (
            "ipvs.scheduler",
            "nftables.masqueradeBit",
            "winkernel.networkName",
            "portRange",
            "windowsRunAsService",
        )
    )


def test_ipvs_file_gives_iptables_rules_with_the_periods_of_ipvs(decode: Decode) -> None:
    """The ConfigMap of a cluster in ipvs mode is usable: its own section supplies the periods, loudly noted."""
    decoded = decode("mode: ipvs\nipvs: {syncPeriod: 10s, minSyncPeriod: 2s}\niptables: {syncPeriod: 50s}\n")

    assert decoded.config == replace(DEFAULT, iptables=IptablesConfig(sync_period_s=10.0, min_sync_period_s=2.0))
    assert len(decoded.notes) == 1
    assert "IPTABLES RULES ARE WRITTEN" in decoded.notes[0]


def test_nftables_file_gives_iptables_rules_with_the_settings_of_nftables(decode: Decode) -> None:
    """Mark bit, masqueradeAll, periods and closed node ports are those that nftables mode would use."""
    decoded = decode("mode: nftables\nnftables: {masqueradeBit: 3, masqueradeAll: true, syncPeriod: 10s}\n")

    iptables = IptablesConfig(masquerade_bit=3, masquerade_all=True, sync_period_s=10.0)
    assert decoded.config == replace(DEFAULT, iptables=iptables, node_port_addresses=("primary",))
    assert "IPTABLES RULES ARE WRITTEN" in decoded.notes[0]
