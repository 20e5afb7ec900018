"""Objects full of odd values, all the way to text: nothing but what belongs there ever reaches a rule."""

import json
import re
from collections.abc import Callable
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.model import Config
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import decode_documents
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.plan.wanted import table_lines
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.rules.shared_chains import PLACES
from kproxy_ipt.ruleset.check import check_lines
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.render import render_chain, render_save
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.testing.hostile import CANARY, Tree, mutated_tree
from kproxy_ipt.trace.lint import lint

RANDOMS = st.randoms(use_true_random=False)
EXAMPLES = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,  # the same examples in every run: what chance finds is for the soak
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
MACHINE = MachineFacts(interface_addresses=("127.0.0.1", "::1", "192.0.2.1", "fd00:31::2", "fe80::1"))

_CHAIN = r"(?:PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING|KUBE-[A-Z0-9-]{2,23})"
_PREFIX = r"[0-9a-f.:]+(?:/\d{1,3})?"
_FIXED = "SNAT|IP|NOTE;?|LOCAL|KUBE-PROXY-FIREWALL|KUBE-FW-[A-Z0-9]{16}"
_WORDS = {
    "-A": _CHAIN,
    "-[sd]": _PREFIX,
    "-[io]": r"[^\s\"'`:/\\]{1,15}",
    "-p": "tcp|udp|sctp",
    "-m": "comment|conntrack|addrtype|mark|statistic|recent|tcp|udp|sctp|nfacct",
    "-j": f"{_CHAIN}|ACCEPT|DROP|RETURN|REJECT|DNAT|MASQUERADE|MARK",
    "--comment": rf'"(?:[a-z0-9 /:;.>\[\]()-]|{_FIXED})*"|[a-z0-9/:.-]+',
    "--nfacct-name": " (?:ct_state_invalid_dropped_pkts|localhost_nps_accepted_pkts)",
    "--dport": r"\d{1,5}",
    "--ctstate": "NEW|INVALID|RELATED,ESTABLISHED(?:,DNAT)?",
    "--(?:src|dst)-type": "LOCAL",
    "--mark": "0x[0-9a-f]+/0x[0-9a-f]+",
    "--(?:or-mark|xor-mark|set-xmark)": "0x[0-9a-f]+(?:/0x[0-9a-f]+)?",
    "--mode": "random|nth",
    "--probability": r"[01]\.\d+",
    "--(?:every|packet|seconds|hitcount)": r"\d+",
    "--name": _CHAIN,
    "--mask": "[f:]+|255.255.255.255",
    "--reject-with": "icmp6?-port-unreachable",
    "--to-destination": r"[0-9.]+:\d+|\[[0-9a-f:]+\]:\d+",
}
_FLAGS = "!|--set|--rcheck|--reap|--rsource|--random-fully"
_RULE = re.compile(
    "(?:(?:" + "|".join(f"{option} (?:{word})" for option, word in _WORDS.items()) + f"|{_FLAGS})(?: |$))+"
)
"""The whole language of our rules: options, each with the only words that may follow it."""
_MAY_BE_EMPTY = ("KUBE-FIREWALL", *(place.chain for place in PLACES.values()))
_ACCEPTING = ("KUBE-FORWARD", "KUBE-NODEPORTS")
"""Established and marked packets; health checks."""


def rules_of(objects: Objects, config: Config, family: Family) -> Ruleset:
    """All rules of a node."""
    snapshot = take_snapshot(objects, family, node_facts(objects.nodes, "node1"))
    return with_base_chains(build_ruleset(snapshot, config, MACHINE))


def read_trees(trees: Tree) -> Objects:
    """What the API would have said."""
    listed = {"kind": "List", "apiVersion": "v1", "items": trees}
    return collect(decode_documents(json.dumps(listed).encode(), "input"))


def assert_clean(ruleset: Ruleset) -> None:
    """Consistent, in the language of rules to the last word, and the same when it is read again."""
    text = render_save(ruleset)
    for table in ruleset.tables.values():
        for chain in table.chains.values():
            for line in render_chain(chain):
                assert _RULE.fullmatch(line), line
                assert not line.endswith("-j ACCEPT") or chain.name in _ACCEPTING, line
    check_lines(table_lines(ruleset), may_be_empty=_MAY_BE_EMPTY)
    assert CANARY not in text
    assert parse_save(text, ruleset.family) == ruleset


@given(random=RANDOMS, family=st.sampled_from(Family))
@EXAMPLES
def test_no_value_of_an_object_gets_out_of_its_place(
    random: Random, family: Family, pick_object_tree: Callable[[Random], list[Tree]]
) -> None:
    """Names, addresses, ports, policies, annotations hold anything: rules hold what they always do."""
    objects = read_trees(mutated_tree([*pick_object_tree(random), *pick_object_tree(random)], random, most=8))

    assert_clean(rules_of(objects, Config(cluster_cidrs=("10.244.0.0/16", "fd00:10:244::/56")), family))


@given(random=RANDOMS, family=st.sampled_from(Family))
@EXAMPLES
def test_no_value_of_a_configuration_gets_out_of_its_place(
    random: Random,
    family: Family,
    pick_object_tree: Callable[[Random], list[Tree]],
    pick_config_tree: Callable[[Random], Tree],
) -> None:
    """Interfaces, ranges, bits: a configuration is refused, or its rules hold what they always do."""
    try:
        config = decode_config(json.dumps(mutated_tree(pick_config_tree(random), random)).encode(), "config").config
    except ConfigError:
        return

    assert_clean(rules_of(read_trees(pick_object_tree(random)), config, family))


@given(random=RANDOMS)
@EXAMPLES
def test_findings_about_odd_objects_are_printable(
    random: Random, pick_object_tree: Callable[[Random], list[Tree]]
) -> None:
    """`lint` looks at everything, and says it in lines that cannot break a log."""
    objects = read_trees(mutated_tree([*pick_object_tree(random), *pick_object_tree(random)], random, most=8))
    node = node_facts(objects.nodes, "node1")
    snapshots = {family: take_snapshot(objects, family, node) for family in Family}

    bad = [str(finding) for finding in lint(objects, snapshots, Config(), MACHINE) if not str(finding).isprintable()]
    assert bad == []
