"""Flags and file give one Config with kube-proxy's precedence."""

import pytest
from msgspec.structs import replace

from kproxy_ipt.config.build import DecodedConfig
from kproxy_ipt.config.document import Document, with_defaults, with_value
from kproxy_ipt.config.flags import FLAGS, FlagKind, Flags, effective_config
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
from kproxy_ipt.errors import ConfigError

DEFAULT = Config()
HEAD = b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def without_file(**flags: str) -> DecodedConfig:
    """The Config of a command line; underscores stand for dashes."""
    return effective_config(None, "", {name.replace("_", "-"): (text,) for name, text in flags.items()})


# One occurrence of each flag that has a field, and what it changes.
SINGLE_FLAGS: dict[str, dict[str, object]] = {
    "hostname-override= Node-1 ": {"hostname_override": "node-1"},
    "hostname-override=": {},
    "feature-gates=AllowServiceExternalIPs=false, WatchListClient=true": {
        "feature_gates": {"AllowServiceExternalIPs": False, "WatchListClient": True}
    },
    "kubeconfig=/k": {"client_connection": ClientConnection(kubeconfig="/k")},
    "kube-api-content-type=application/json": {"client_connection": ClientConnection(content_type="application/json")},
    "kube-api-burst=0": {"client_connection": ClientConnection(burst=0)},
    "kube-api-qps=2.5": {"client_connection": ClientConnection(qps=2.5)},
    "config-sync-period=1h": {"config_sync_period_s": 3600.0},
    "bind-address=fd00::1": {"bind_address": "fd00::1"},
    "bind-address=": {},
    "healthz-bind-address=10.0.0.1": {"healthz_bind_address": "10.0.0.1:10256"},
    "healthz-bind-address=": {},
    "healthz-port=0": {"healthz_bind_address": ""},
    "healthz-port=9": {},
    "metrics-bind-address=fd00::1": {"metrics_bind_address": "[fd00::1]:10249"},
    "metrics-bind-address=[::]:9": {"metrics_bind_address": "[::]:9"},
    "metrics-bind-address=": {},
    "bind-address-hard-fail=true": {"bind_address_hard_fail": True},
    "profiling=t": {"enable_profiling": True},
    "show-hidden-metrics-for-version=1.35": {"show_hidden_metrics_for_version": "1.35"},
    "proxy-mode=iptables": {},
    "iptables-masquerade-bit=0": {"iptables": IptablesConfig(masquerade_bit=0)},
    "masquerade-all=true": {"iptables": IptablesConfig(masquerade_all=True)},
    "iptables-localhost-nodeports=false": {"iptables": IptablesConfig(localhost_node_ports=False)},
    "iptables-sync-period=5s": {"iptables": IptablesConfig(sync_period_s=5.0)},
    "iptables-min-sync-period=0": {"iptables": IptablesConfig(min_sync_period_s=0.0)},
    "detect-local-mode=NodeCIDR": {"detect_local_mode": DetectLocalMode.NODE_CIDR},
    "pod-bridge-interface=cni0": {"bridge_interface": "cni0"},
    "pod-interface-name-prefix=veth": {"interface_name_prefix": "veth"},
    "cluster-cidr=10.0.0.0/8": {"cluster_cidrs": ("10.0.0.0/8",)},
    "cluster-cidr=": {},
    "nodeport-addresses=10.0.0.0/8,fd00::/64": {"node_port_addresses": ("10.0.0.0/8", "fd00::/64")},
    "nodeport-addresses=": {},
    "oom-score-adj=-5": {"oom_score_adj": -5},
    "conntrack-max-per-core=0": {"conntrack": ConntrackConfig(max_per_core=0)},
    "conntrack-min=0x10": {"conntrack": ConntrackConfig(min=16)},
    "conntrack-tcp-timeout-established=0": {"conntrack": ConntrackConfig(tcp_established_timeout_s=0.0)},
    "conntrack-tcp-timeout-close-wait=1m": {"conntrack": ConntrackConfig(tcp_close_wait_timeout_s=60.0)},
    "conntrack-tcp-be-liberal=true": {"conntrack": ConntrackConfig(tcp_be_liberal=True)},
    "conntrack-udp-timeout=1s": {"conntrack": ConntrackConfig(udp_timeout_s=1.0)},
    "conntrack-udp-timeout-stream=2s": {"conntrack": ConntrackConfig(udp_stream_timeout_s=2.0)},
    "ipvs-sync-period=5s": {},
    "ipvs-min-sync-period=5s": {},
    "ipvs-scheduler=rr": {},
    "dispatch=tree": {"shape": ShapeConfig(dispatch=Dispatch.TREE)},
    "balance=grouped": {"shape": ShapeConfig(balance=Balance.GROUPED)},
    "connection-metrics=endpoint": {"connection_metrics": ConnectionMetrics.ENDPOINT},
    "scheduler=rr": {"shape": ShapeConfig(scheduler=Scheduler.RR)},
    "status-bind-address=127.0.0.1": {"status_bind_address": "127.0.0.1:10258"},
    "status-bind-address=[::1]:9": {"status_bind_address": "[::1]:9"},
    "status-bind-address=": {},
    "external-ips=192.0.2.7/24,2001:db8::/32": {"external_ip_ranges": ("192.0.2.0/24", "2001:db8::/32")},
    "ipvs-exclude-cidrs=10.0.0.0/8": {},
    "ipvs-strict-arp=true": {},
    "ipvs-tcp-timeout=5s": {},
    "ipvs-tcpfin-timeout=5s": {},
    "ipvs-udp-timeout=5s": {},
    "v=4": {"logging": LoggingConfig(verbosity=4)},
    "vmodule=a=1,b=2": {
        "logging": LoggingConfig(
            vmodule=(VModuleItem(file_pattern="a", verbosity=1), VModuleItem(file_pattern="b", verbosity=2))
        )
    },
    "logging-format=json": {"logging": LoggingConfig(format="json")},
    "log-flush-frequency=1s": {"logging": LoggingConfig(flush_frequency_s=1.0)},
    "log-text-split-stream=false": {},
    "log-text-info-buffer-size=0": {},
    "log-json-split-stream=false": {},
    "log-json-info-buffer-size=0": {},
}

BAD_FLAGS = {
    "iptables-masquerade-bit=x": "--iptables-masquerade-bit: ",
    "iptables-sync-period=30": "--iptables-sync-period: invalid duration",
    "masquerade-all=maybe": "--masquerade-all: ",
    "kube-api-qps=fast": "--kube-api-qps: ",
    "v=-1": "--v: ",
    "vmodule=a": "--vmodule: ",
    "vmodule==1": "--vmodule: ",
    "feature-gates=A": "--feature-gates: ",
    "feature-gates=A=b": "--feature-gates: ",
    "bind-address=x": "--bind-address: ",
    "healthz-bind-address=10.0.0.1:0": "--healthz-bind-address: ",
    "status-bind-address=localhost:9": "--status-bind-address: ",
    "metrics-bind-address=[::1]": "--metrics-bind-address: ",
    "log-json-info-buffer-size=much": "--log-json-info-buffer-size: ",
    "hostname-override=  ": "--hostname-override: ",
    "no-such-flag=1": "unknown flag --no-such-flag",
}

REFUSED_FLAGS = {
    "iptables-sync-period=0": "IPTables.SyncPeriod: ",
    "iptables-sync-period=1ms": "IPTables.SyncPeriod: ",
    "iptables-min-sync-period=-1s": "IPTables.MinSyncPeriod: ",
    "config-sync-period=0": "ConfigSyncPeriod: ",
    "metrics-port=0": 'MetricsBindAddress: Invalid value: "": must be IP:port',
    "cluster-cidr=x": "ClusterCIDR: ",
    "external-ips=10.0.0.0/8,x": 'KproxyIpt.ExternalIPs[1]: Invalid value: "x": must be a valid CIDR',
    "proxy-mode=userspace": "Mode: ",
}


def flags_of(text: str) -> Flags:
    """`name=value` as one occurrence."""
    name, _, value = text.partition("=")
    return {name: (value,)}


@pytest.mark.parametrize(("flag", "changes"), SINGLE_FLAGS.items())
def test_flag_changes_its_field(flag: str, changes: dict[str, object]) -> None:
    """Without a file each flag changes the default of its own field only."""
    assert effective_config(None, "", flags_of(flag)).config == replace(DEFAULT, **changes)


def test_every_flag_with_a_field_has_a_row_above() -> None:
    """The table of this test is complete, so that no flag is forgotten."""
    covered = {flag.partition("=")[0] for flag in SINGLE_FLAGS}

    assert {spec.name for spec in FLAGS if spec.path} <= covered


@pytest.mark.parametrize("spec", [spec for spec in FLAGS if spec.path], ids=lambda spec: spec.name)
def test_flag_names_fields_that_exist(spec: object) -> None:
    """Every path of the table is a field of the document."""
    assert isinstance(spec, type(FLAGS[0]))
    for path in (spec.path, *spec.also):
        assert isinstance(with_value(Document(), path, None), Document)


@pytest.mark.parametrize("spec", [spec for spec in FLAGS if spec.default], ids=lambda spec: spec.name)
def test_default_in_the_help_is_the_default(spec: object) -> None:
    """Giving a flag its documented default changes nothing."""
    assert isinstance(spec, type(FLAGS[0]))
    assert effective_config(None, "", {spec.name: (spec.default,)}).config == DEFAULT


@pytest.mark.parametrize("file", [None, HEAD])
@pytest.mark.parametrize(("flag", "problem"), BAD_FLAGS.items())
def test_value_that_cannot_be_read_is_refused(file: bytes | None, flag: str, problem: str) -> None:
    """Also where the file overrides the flag."""
    with pytest.raises(ConfigError) as caught:
        effective_config(file, "proxy.conf", flags_of(flag))

    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(problem)


@pytest.mark.parametrize(("flag", "problem"), REFUSED_FLAGS.items())
def test_value_that_makes_no_sense_is_refused(flag: str, problem: str) -> None:
    """Flags pass the same validation as the file."""
    with pytest.raises(ConfigError) as caught:
        effective_config(None, "", flags_of(flag))

    assert caught.value.problems[0].startswith(f"KubeProxyConfiguration.{problem}")


def test_all_bad_flags_are_reported_together() -> None:
    """One attempt shows every mistake of a command line."""
    with pytest.raises(ConfigError) as caught:
        without_file(v="x", masquerade_all="y", nonsense="z")

    assert len(caught.value.problems) == 3


def test_repeated_lists_add_up_and_other_flags_keep_the_last() -> None:
    """As in pflag."""
    flags = {
        "nodeport-addresses": ("10.0.0.0/8", "fd00::/64,192.168.0.0/16"),
        "feature-gates": ("A=true", "A=false,B=true"),
        "oom-score-adj": ("1", "2"),
    }
    config = effective_config(None, "", flags).config

    assert config.node_port_addresses == ("10.0.0.0/8", "fd00::/64", "192.168.0.0/16")
    assert config.feature_gates == {"A": False, "B": True}
    assert config.oom_score_adj == 2


def test_port_flag_completes_a_bare_address() -> None:
    """The deprecated flag counts only where the address has no port, and is noted."""
    decoded = without_file(healthz_bind_address="10.0.0.1", healthz_port="9")

    assert decoded.config.healthz_bind_address == "10.0.0.1:9"
    assert decoded.notes == ("--healthz-port is deprecated: use --healthz-bind-address",)


def test_bare_metrics_address_is_refused_when_the_config_is_written() -> None:
    """With --write-config-to no port is added, as in kube-proxy."""
    with pytest.raises(ConfigError, match=r"MetricsBindAddress.*must be IP:port"):
        without_file(metrics_bind_address="127.0.0.1", write_config_to="/x")


def test_file_overrides_all_flags_but_the_kept_ones() -> None:
    """With a file the others are named as ignored."""
    flags = {
        "oom-score-adj": ("5",),
        "hostname-override": ("Flag",),
        "v": ("7",),
        "master": ("u",),
        "cleanup": ("true",),
    }
    decoded = effective_config(HEAD + b"hostnameOverride: file\noomScoreAdj: 1\n", "proxy.conf", flags)

    assert decoded.config == replace(
        DEFAULT, oom_score_adj=1, hostname_override="flag", logging=LoggingConfig(verbosity=7)
    )
    assert decoded.notes == ("--oom-score-adj is ignored: with --config the file decides",)


def test_vmodule_of_flag_and_file_are_joined() -> None:
    """Entries of the command line come first; the verbosity of the flag wins."""
    file = (
        HEAD
        + b"logging: {verbosity: 10, vmodule: [{filePattern: foo, verbosity: 1}, {filePattern: bar, verbosity: 2}]}"
    )
    logging = effective_config(file, "", {"v": ("7",), "vmodule": ("goo.go=8",)}).config.logging

    assert logging.verbosity == 7
    assert [entry.file_pattern for entry in logging.vmodule] == ["goo.go", "foo", "bar"]


@pytest.mark.parametrize(("mode", "sync_period_s"), [("ipvs", 20.0), ("nftables", 10.0), ("iptables", 10.0)])
def test_period_flags_follow_the_mode(mode: str, sync_period_s: float) -> None:
    """--iptables-sync-period counts in every mode but ipvs."""
    decoded = without_file(proxy_mode=mode, iptables_sync_period="10s", ipvs_sync_period="20s")

    assert decoded.config.iptables.sync_period_s == sync_period_s


def test_ipvs_flags_are_noted_as_without_effect() -> None:
    """Only where they differ from the default."""
    decoded = without_file(ipvs_scheduler="rr", ipvs_strict_arp="false")

    assert decoded.notes == ("--ipvs-scheduler plays no part in iptables mode",)


def test_no_flags_and_no_file_is_the_default() -> None:
    """The defaults of the model are those of kube-proxy."""
    assert effective_config(None, "", {}) == DecodedConfig(DEFAULT)
    assert with_defaults(Document()) == with_defaults(with_defaults(Document()))


def test_flag_names_are_unique_and_texts_are_whole() -> None:
    """The table can be turned into options without clashes."""
    assert len({spec.name for spec in FLAGS}) == len(FLAGS)
    assert all(spec.help.endswith(".") for spec in FLAGS)
    assert all(spec.default in {"true", "false"} for spec in FLAGS if spec.kind is FlagKind.BOOL)
