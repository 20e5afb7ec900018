"""Properties of reading and writing configurations."""

import json
from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.config.build import DecodedConfig
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.document import API_VERSION, KIND
from kproxy_ipt.config.encode import config_document, encode_config
from kproxy_ipt.config.flags import FLAGS, effective_config
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

names = st.text(max_size=12)
files = st.text(st.characters(codec="utf-8", exclude_characters="=,"), min_size=1, max_size=8)
int32s = st.integers(0, 2**31 - 1)
seconds = st.integers(0, 2**62).map(lambda nanoseconds: nanoseconds / 1_000_000_000)
periods = st.integers(1, 3_600_000_000_000).map(lambda nanoseconds: nanoseconds / 1_000_000_000)
long_periods = st.integers(3_600_000_000_000, 2**60).map(lambda nanoseconds: nanoseconds / 1_000_000_000)
ipv4s = st.ip_addresses(v=4).map(str)
servers = st.tuples(ipv4s, st.integers(1, 65535)).map(lambda pair: f"{pair[0]}:{pair[1]}")
ranges = st.sampled_from(["10.0.0.0/8", "192.168.7.0/24", "fd00::/64", "0.0.0.0/0", "2001:db8::/32"])

configs = st.builds(
    Config,
    feature_gates=st.dictionaries(st.sampled_from(["AllAlpha", "Nonsense", "WatchListClient"]), st.booleans()),
    client_connection=st.builds(
        ClientConnection,
        kubeconfig=names,
        accept_content_types=names,
        content_type=names.filter(bool),
        qps=st.floats(1, 1e6, width=32),
        burst=st.integers(1, 2**31 - 1),
    ),
    logging=st.builds(
        LoggingConfig,
        verbosity=int32s,
        flush_frequency_s=periods,
        vmodule=st.lists(st.builds(VModuleItem, file_pattern=files, verbosity=int32s), max_size=2).map(tuple),
    ),
    hostname_override=names.filter(lambda name: not name or bool(name.strip())),
    bind_address=ipv4s,
    healthz_bind_address=servers,
    metrics_bind_address=servers,
    status_bind_address=st.one_of(st.just(""), servers),
    bind_address_hard_fail=st.booleans(),
    enable_profiling=st.booleans(),
    show_hidden_metrics_for_version=st.sampled_from(["", "1.35"]),
    mode=st.just("iptables"),
    iptables=st.builds(
        IptablesConfig,
        masquerade_bit=st.integers(0, 31),
        masquerade_all=st.booleans(),
        localhost_node_ports=st.booleans(),
        sync_period_s=long_periods,
        min_sync_period_s=periods,
    ),
    detect_local_mode=st.sampled_from([DetectLocalMode.CLUSTER_CIDR, DetectLocalMode.NODE_CIDR]),
    bridge_interface=names,
    interface_name_prefix=names,
    cluster_cidrs=st.sampled_from([(), ("10.0.0.0/8",), ("fd00::/64", "0.0.0.0/0")]),
    node_port_addresses=st.one_of(st.just(("primary",)), st.lists(ranges, max_size=3).map(tuple)),
    oom_score_adj=st.integers(-1000, 1000),
    conntrack=st.builds(
        ConntrackConfig,
        max_per_core=int32s,
        min=int32s,
        tcp_established_timeout_s=seconds,
        tcp_close_wait_timeout_s=seconds,
        tcp_be_liberal=st.booleans(),
        udp_timeout_s=seconds,
        udp_stream_timeout_s=seconds,
    ),
    config_sync_period_s=periods,
    shape=st.builds(
        ShapeConfig,
        dispatch=st.sampled_from(Dispatch),
        balance=st.sampled_from(Balance),
        scheduler=st.sampled_from(Scheduler),
    ),
    connection_metrics=st.sampled_from(ConnectionMetrics),
)

fields = st.sampled_from(sorted(config_document(Config())))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), names)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields | names, inner, max_size=4),
    max_leaves=8,
)
texts = st.one_of(
    names, st.sampled_from(["0", "1", "true", "10.0.0.1", "::", "30s", "primary", "a=1", "A=true", "-1s"])
)


def outcome(attempt: Callable[[], DecodedConfig]) -> DecodedConfig | tuple[str, ...]:
    """What was decoded, or the problems; any other exception passes."""
    try:
        return attempt()
    except ConfigError as error:
        return error.problems


@given(configs)
def test_written_config_reads_back_the_same(config: Config) -> None:
    """YAML text and JSON document alike are read to the Config that they were made from."""
    assert decode_config(encode_config(config).encode(), "written").config == config
    assert decode_config(json.dumps(config_document(config)).encode(), "written").config == config


@given(st.one_of(st.binary(max_size=200), names.map(str.encode)))
def test_any_bytes_are_a_config_or_a_config_error(text: bytes) -> None:
    """Nothing else ever comes out, with the right head in front or without."""
    for head in (b"", f"apiVersion: {API_VERSION}\nkind: {KIND}\n".encode()):
        assert outcome(partial(decode_config, head + text, "any"))


@given(st.dictionaries(fields, values, max_size=6))
def test_any_document_is_a_config_or_a_config_error(document: dict[str, object]) -> None:
    """Known fields with values of any type neither crash nor pass for a Config that cannot be written."""
    text = json.dumps({**document, "apiVersion": API_VERSION, "kind": KIND}).encode()
    decoded = outcome(partial(decode_config, text, "any"))

    assert decoded
    if isinstance(decoded, DecodedConfig):
        assert decode_config(encode_config(decoded.config).encode(), "again").config == decoded.config


@given(
    st.dictionaries(st.sampled_from([spec.name for spec in FLAGS]), st.lists(texts, min_size=1, max_size=2).map(tuple))
)
def test_any_flags_are_a_config_or_a_config_error(flags: dict[str, tuple[str, ...]]) -> None:
    """A command line never crashes."""
    assert outcome(partial(effective_config, None, "", flags))
