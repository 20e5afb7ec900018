"""A configuration that changes while the daemon runs."""

import msgspec
import pytest

from kproxy_ipt.config.model import Config, ConntrackConfig, IptablesConfig
from kproxy_ipt.daemon.reload import reload_config


def test_same_configuration_changes_nothing() -> None:
    """A file that was only touched has no effect."""
    reload = reload_config(Config(), Config())

    assert (reload.config, reload.changed, reload.restart) == (Config(), (), ())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("iptables", IptablesConfig(masquerade_all=True)),
        ("cluster_cidrs", ("10.0.0.0/8",)),
        ("node_port_addresses", ("192.0.2.0/24",)),
        ("conntrack", ConntrackConfig(tcp_be_liberal=True)),
        ("bridge_interface", "cbr0"),
    ],
)
def test_what_rules_depend_on_counts_at_once(field: str, value: object) -> None:
    """The running configuration takes it over."""
    wanted = msgspec.structs.replace(Config(), **{field: value})
    reload = reload_config(Config(), wanted)

    assert (reload.config, reload.changed, reload.restart) == (wanted, (field,), ())


def test_what_needs_a_restart_is_named_and_not_taken_over() -> None:
    """Listening addresses stay as they are; the rest of the same file counts."""
    wanted = Config(metrics_bind_address="0.0.0.0:10249", cluster_cidrs=("10.0.0.0/8",))
    reload = reload_config(Config(), wanted)

    assert reload.restart == ("metrics_bind_address",)
    assert reload.changed == ("cluster_cidrs",)
    assert reload.config == Config(cluster_cidrs=("10.0.0.0/8",))
