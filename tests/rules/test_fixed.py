"""Chains that know no service, and the jumps from built-in chains."""

from dataclasses import dataclass
from typing import Any

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.rules.fixed import ACCEPT, BASE_JUMPS, BaseJump, _jump
from kproxy_ipt.ruleset.matches import Comment, Conntrack
from kproxy_ipt.ruleset.model import Chain, Rule
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.state.model import MachineFacts, OptionalPart
from kproxy_ipt.testing.desired import desired_for, rule_lines

V4, V6 = Family.IPV4, Family.IPV6
NOTE = '-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"'


def _lines(chain: str, table: str = "nat", family: Family = V4, **options: Any) -> tuple[str, ...]:
    config = Config(iptables=IptablesConfig(**options))
    return rule_lines(desired_for(family=family, config=config), table, chain)


@pytest.mark.parametrize(("bit", "mark"), [(14, "0x4000"), (0, "0x1"), (20, "0x100000"), (31, "0x80000000")])
def test_only_our_bit_of_the_mark_is_set_tested_and_cleared(bit: int, mark: str) -> None:
    """The marks of others survive, whatever bit is ours."""
    assert _lines("KUBE-MARK-MASQ", masquerade_bit=bit) == (f"-A KUBE-MARK-MASQ -j MARK --set-xmark {mark}/{mark}",)
    assert _lines("KUBE-POSTROUTING", masquerade_bit=bit)[:2] == (
        f"-A KUBE-POSTROUTING -m mark ! --mark {mark}/{mark} -j RETURN",
        f"-A KUBE-POSTROUTING -j MARK --set-xmark {mark}/0x0",
    )
    assert f"--mark {mark}/{mark} -j ACCEPT" in _lines("KUBE-FORWARD", "filter", masquerade_bit=bit)[1]


@pytest.mark.parametrize(
    ("lacking", "ending"),
    [((), "-j MASQUERADE --random-fully"), ((OptionalPart.RANDOM_FULLY,), "-j MASQUERADE")],
)
def test_fully_random_ports_are_asked_for_where_the_program_can(lacking: tuple[OptionalPart, ...], ending: str) -> None:
    """An old iptables does not know the flag."""
    machine = MachineFacts(lacking=frozenset((Family.IPV4, part) for part in lacking))

    assert rule_lines(desired_for(machine=machine), "nat", "KUBE-POSTROUTING")[-1].endswith(ending)


INVALID = "-A KUBE-FORWARD -m conntrack --ctstate INVALID"


@pytest.mark.parametrize(
    ("machine", "first"),
    [
        (MachineFacts(), f"{INVALID} -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP"),
        (MachineFacts(nfacct_counters=frozenset()), f"{INVALID} -j DROP"),
    ],
)
def test_invalid_packets_are_dropped_and_counted_if_the_kernel_can(machine: MachineFacts, first: str) -> None:
    """Without nfacct the rule stands without the counter."""
    lines = rule_lines(desired_for(machine=machine), "filter", "KUBE-FORWARD")

    assert first == lines[0]
    assert len(lines) == 3


def test_liberal_kernel_drops_no_invalid_packets() -> None:
    """Such a kernel takes packets out of the window for valid itself."""
    lines = rule_lines(desired_for(machine=MachineFacts(tcp_be_liberal=True)), "filter", "KUBE-FORWARD")

    assert len(lines) == 2
    assert "INVALID" not in "".join(lines)


@dataclass(frozen=True)
class _Entry:
    """What the nodePort entry of nat KUBE-SERVICES looks like."""

    family: Family
    localhost: bool
    prefixes: tuple[str, ...]
    heads: tuple[str, ...]
    guarded: bool


ENTRIES = [
    _Entry(V4, True, (), ("",), True),
    _Entry(V4, False, (), ("! -d 127.0.0.0/8 ",), False),
    _Entry(V4, False, ("192.168.0.0/24", "127.0.0.1/32"), ("-d 192.168.0.2/32 ",), False),
    _Entry(V4, True, ("127.0.0.1/32", "192.168.0.0/24"), ("-d 127.0.0.1/32 ", "-d 192.168.0.2/32 "), True),
    _Entry(V4, False, ("192.168.0.0/23", "2001:db8::/64"), ("-d 192.168.0.2/32 ", "-d 192.168.1.2/32 "), False),
    _Entry(V4, True, ("198.51.100.0/24",), (), False),
    _Entry(V6, True, (), ("! -d ::1/128 ",), False),
    _Entry(V6, False, (), ("! -d ::1/128 ",), False),
    _Entry(V6, False, ("192.168.0.0/24", "2001:db8::/64", "::1/128"), ("-d 2001:db8::1/128 ",), False),
    _Entry(V6, True, ("192.168.0.0/24",), ("! -d ::1/128 ",), False),
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_node_ports_are_entered_by_the_addresses_that_were_chosen(entry: _Entry) -> None:
    """One rule for all local addresses, or one for each chosen one; loopback only where it can work."""
    config = Config(node_port_addresses=entry.prefixes, iptables=IptablesConfig(localhost_node_ports=entry.localhost))
    machine = MachineFacts(
        interface_addresses=("127.0.0.1", "192.168.0.2", "192.168.1.2", "2001:db8::1", "2001:db8:1::2", "::1")
    )
    desired = desired_for(family=entry.family, config=config, machine=machine)
    match = "" if any(head.startswith("-d") for head in entry.heads) else " -m addrtype --dst-type LOCAL"
    expected = tuple(f"-A KUBE-SERVICES {head}{NOTE}{match} -j KUBE-NODEPORTS" for head in entry.heads)

    assert expected == rule_lines(desired, "nat", "KUBE-SERVICES")
    assert entry.guarded is bool(rule_lines(desired, "filter", "KUBE-FIREWALL"))


@pytest.mark.parametrize("family", list(Family))
def test_jumps_stand_in_built_in_chains_in_the_order_of_kube_proxy(family: Family) -> None:
    """In a clean table the jump that is inserted last is on top."""
    ruleset = with_base_chains(desired_for(family=family))
    targets = {
        (table.name, chain.name): [rule.target.chain for rule in chain.rules if isinstance(rule.target, Jump)]
        for table in ruleset.tables.values()
        for chain in table.chains.values()
        if chain.policy != "-"
    }

    assert targets == {
        ("filter", "INPUT"): ["KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"],
        ("filter", "FORWARD"): ["KUBE-PROXY-FIREWALL", "KUBE-FORWARD", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"],
        ("filter", "OUTPUT"): ["KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-SERVICES"],
        ("nat", "PREROUTING"): ["KUBE-SERVICES"],
        ("nat", "OUTPUT"): ["KUBE-SERVICES"],
        ("nat", "POSTROUTING"): ["KUBE-POSTROUTING"],
    }


@pytest.mark.parametrize("family", list(Family))
def test_whole_tables_are_of_the_family_and_let_pass_what_no_rule_decides(family: Family) -> None:
    """Built-in chains have the policy of a node that nobody has set up."""
    ruleset = with_base_chains(desired_for(family=family))
    policies = {chain.policy for table in ruleset.tables.values() for chain in table.chains.values()}

    assert ruleset.family is family
    assert policies == {"ACCEPT", "-"}


def test_only_new_connections_are_led_to_what_decides_about_them() -> None:
    """Packets of known connections need not walk these chains; in nat the kernel asks for new ones only."""
    asked = {(jump.table, jump.chain, jump.target) for jump in BASE_JUMPS if Conntrack(("NEW",)) in jump.rule.matches}

    assert asked == {
        ("filter", chain, target)
        for chain, targets in {
            "INPUT": ("KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"),
            "FORWARD": ("KUBE-EXTERNAL-SERVICES", "KUBE-SERVICES", "KUBE-PROXY-FIREWALL"),
            "OUTPUT": ("KUBE-SERVICES", "KUBE-PROXY-FIREWALL"),
        }.items()
        for target in targets
    }


def test_jumps_are_what_is_made_of_their_parts() -> None:
    """The list is a constant; made anew, each of its jumps is the same."""
    for jump in BASE_JUMPS:
        comments = [match.text for match in jump.rule.matches if isinstance(match, Comment)]
        parts = (jump.table, jump.chain, "".join(comments), jump.target)
        is_for_all = len(jump.rule.matches) == len(comments)

        assert jump == (_jump(*parts) if is_for_all else _jump(*parts, new_only=True))


def test_rule_that_leads_nowhere_has_no_chain_as_target() -> None:
    """A verdict ends the walk."""
    assert BaseJump("filter", "INPUT", Rule(target=ACCEPT)).target == ""


def test_guard_of_loopback_is_written_only_with_node_ports_on_localhost() -> None:
    """Otherwise KUBE-FIREWALL must exist, but its rules are those of the kubelet."""
    off = desired_for(config=Config(iptables=IptablesConfig(localhost_node_ports=False)))
    on = desired_for()

    assert (("filter", "KUBE-FIREWALL"),) == off.shared_chains
    assert off.ruleset.chain("filter", "KUBE-FIREWALL") is None
    assert with_base_chains(off).tables["filter"].chains["KUBE-FIREWALL"] == Chain("KUBE-FIREWALL")
    assert () == on.shared_chains
    assert "! -s 127.0.0.0/8 -d 127.0.0.0/8" in rule_lines(on, "filter", "KUBE-FIREWALL")[0]
