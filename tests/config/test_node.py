"""Name, addresses and families of a node follow from configuration and Node object as in kube-proxy."""

import pytest
from msgspec.structs import replace

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.config.node import NodeIPs, expand_node_port_addresses, node_ips, node_name, startup_notes
from kproxy_ipt.errors import ConfigError

V4, V6 = Family.IPV4, Family.IPV6
BOTH = frozenset({V4, V6})

# bindAddress, addresses of the Node object; primary family, IPv4 and IPv6 node IP.
NODE_IPS = (
    ("10.0.0.1", (), V4, "10.0.0.1", "::1"),
    ("fd00:4321::2", (), V6, "127.0.0.1", "fd00:4321::2"),
    ("", (), V4, "127.0.0.1", "::1"),
    ("0.0.0.0", (), V4, "127.0.0.1", "::1"),
    ("0.0.0.0", ("192.168.1.1",), V4, "192.168.1.1", "::1"),
    ("::", ("192.168.1.1",), V4, "192.168.1.1", "::1"),
    ("0.0.0.0", ("fd00:1234::1",), V6, "127.0.0.1", "fd00:1234::1"),
    ("::", ("fd00:1234::1",), V6, "127.0.0.1", "fd00:1234::1"),
    ("::", ("90.90.90.90", "2001:db8::2"), V4, "90.90.90.90", "2001:db8::2"),
    ("0.0.0.0", ("2001:db8::2", "90.90.90.90"), V6, "90.90.90.90", "2001:db8::2"),
    ("80.80.80.80", ("2001:db8::2", "90.90.90.90"), V4, "80.80.80.80", "2001:db8::2"),
    ("2001:db8::555", ("90.90.90.90", "2001:db8::2"), V6, "90.90.90.90", "2001:db8::555"),
    ("127.0.0.1", ("2001:db8::2", "90.90.90.90"), V4, "127.0.0.1", "2001:db8::2"),
    ("::1", ("90.90.90.90", "2001:db8::2"), V6, "90.90.90.90", "::1"),
    ("", ("10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"), V4, "10.0.0.1", "fd00::1"),
)

NODE = NodeIPs(primary_family=V4, ipv4="192.168.1.1", ipv6="fd00::1")
NODE_V6 = replace(NODE, primary_family=V6)
DUAL = ("10.0.0.0/8", "fd00::/64")

# Config, node, pod ranges, families of the machine; a part of the one note expected.
STARTUP_NOTES = (
    (Config(), NODE, (), BOTH, "nodePortAddresses is unset"),
    (
        Config(node_port_addresses=("primary",)),
        NodeIPs(primary_family=V4, ipv4="127.0.0.1", ipv6="::1"),
        (),
        BOTH,
        "nodePortAddresses is unset",
    ),
    (Config(node_port_addresses=("10.0.0.0/8",), cluster_cidrs=DUAL), NODE, (), BOTH, "holds only IPv4 ranges"),
    (
        Config(node_port_addresses=("10.0.0.0/8",), detect_local_mode=DetectLocalMode.NODE_CIDR),
        NODE,
        DUAL,
        BOTH,
        "appears to be dual-stack",
    ),
    (Config(node_port_addresses=("fd00::/64",)), NODE, (), BOTH, "appears to be IPv4-primary"),
    (
        Config(node_port_addresses=DUAL, cluster_cidrs=("fd00::/64",)),
        NODE,
        (),
        BOTH,
        "the node is IPv4-primary but clusterCIDR holds only IPv6 ranges",
    ),
    (
        Config(node_port_addresses=DUAL, healthz_bind_address="[fd00::1]:10256"),
        NODE,
        (),
        frozenset({V4}),
        "the node is IPv4-only but healthzBindAddress is IPv6",
    ),
    (
        Config(node_port_addresses=DUAL),
        NODE_V6,
        (),
        frozenset({V6}),
        "the node is IPv6-only but metricsBindAddress is IPv4",
    ),
)


@pytest.mark.parametrize(("bind_address", "addresses", "primary", "ipv4", "ipv6"), NODE_IPS)
def test_node_ips_follow_bind_address_and_node(
    bind_address: str, addresses: tuple[str, ...], primary: Family, ipv4: str, ipv6: str
) -> None:
    """Every row of the reference table."""
    assert node_ips(bind_address, addresses) == NodeIPs(primary_family=primary, ipv4=ipv4, ipv6=ipv6)


@pytest.mark.parametrize(
    ("override", "machine", "name"),
    [("", "Host-1", "host-1"), (" Node-1\n", "host", "node-1"), ("", " h ", "h"), ("a", "", "a")],
)
def test_node_name_is_override_else_machine(override: str, machine: str, name: str) -> None:
    """Trimmed and in lower case, wherever it comes from."""
    assert node_name(Config(hostname_override=override), machine) == name


@pytest.mark.parametrize(("override", "machine"), [("", ""), ("", "  "), ("  ", "host")])
def test_empty_node_name_is_an_error(override: str, machine: str) -> None:
    """Nothing can be local to a node without a name."""
    with pytest.raises(ConfigError, match="node name is empty"):
        node_name(Config(hostname_override=override), machine)


@pytest.mark.parametrize(
    ("given", "node", "expanded"),
    [
        ((), NODE, ()),
        (DUAL, NODE, DUAL),
        (("primary",), NODE, ("192.168.1.1/32", "fd00::1/128")),
        (("primary",), replace(NODE, ipv6="::1"), ("192.168.1.1/32",)),
        (("primary",), replace(NODE, ipv4="127.0.0.1"), ("fd00::1/128",)),
        (("primary",), NodeIPs(primary_family=V4, ipv4="127.0.0.1", ipv6="::1"), ()),
    ],
)
def test_primary_is_the_addresses_of_the_node(given: tuple[str, ...], node: NodeIPs, expanded: tuple[str, ...]) -> None:
    """Loopback stands for an unknown address and is left out; prefixes stay as they are."""
    assert expand_node_port_addresses(Config(node_port_addresses=given), node) == expanded


@pytest.mark.parametrize(("config", "node", "pod_cidrs", "families", "note"), STARTUP_NOTES)
def test_mismatch_of_config_and_node_is_noted(
    config: Config, node: NodeIPs, pod_cidrs: tuple[str, ...], families: frozenset[Family], note: str
) -> None:
    """Exactly one note for each doubtful combination."""
    notes = startup_notes(config, node, pod_cidrs, families)

    assert len(notes) == 1
    assert note in notes[0]


@pytest.mark.parametrize(("families", "cluster_cidrs"), [(BOTH, DUAL), (frozenset({V4}), ()), (BOTH, ("10.0.0.0/8",))])
def test_config_that_fits_the_node_is_not_noted(families: frozenset[Family], cluster_cidrs: tuple[str, ...]) -> None:
    """Ranges of both families, unspecified server addresses: nothing to say; podCIDRs count in NodeCIDR mode only."""
    config = Config(node_port_addresses=DUAL, cluster_cidrs=cluster_cidrs)

    assert startup_notes(config, NODE, ("fd00::/64",), families) == ()


@pytest.mark.parametrize(
    ("config", "families"),
    [
        (Config(cluster_cidrs=("fd00::/64",)), frozenset({V4})),
        (Config(detect_local_mode=DetectLocalMode.NODE_CIDR), frozenset({V4})),
        (Config(detect_local_mode=DetectLocalMode.NODE_CIDR), BOTH),
    ],
)
def test_ranges_of_the_other_family_alone_are_fatal(config: Config, families: frozenset[Family]) -> None:
    """Local traffic could not be told apart at all: clusterCIDR on a single-stack node, podCIDRs on any."""
    with pytest.raises(ConfigError, match=r"the node is IPv4-.* holds only IPv6 ranges"):
        startup_notes(config, NODE, ("fd00::/64",), families)
