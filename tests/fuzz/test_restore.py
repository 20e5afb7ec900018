"""Whatever is made of odd objects, the real programs take it: what they refuse would cost a Service its rules."""

import json
import subprocess
from collections.abc import Callable
from random import Random

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.document import API_VERSION, KIND
from kproxy_ipt.config.model import Config
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import decode_documents
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.testing.hostile import HOSTILE_TEXTS, Tree, mutated_tree
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

_WORLDS = 150
# Accounting objects do not exist in a new namespace; a daemon that finds none writes no rules that count.
_MACHINE = MachineFacts(
    interface_addresses=("127.0.0.1", "::1", "192.0.2.1", "fd00:31::2"), nfacct_counters=frozenset()
)


def _config(tree: Tree, random: Random) -> Config:
    try:
        return decode_config(json.dumps(mutated_tree(tree, random)).encode(), "config").config
    except ConfigError:
        return Config(cluster_cidrs=("10.244.0.0/16", "fd00:10:244::/56"))


def _is_taken(program: str, text: str) -> str:
    """What the restore program says to *text*, "" if it takes it."""
    done = subprocess.run([program, "--test"], input=text, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("backend", ["nft", "legacy"])
@pytest.mark.parametrize("field", ["bridgeInterface", "interfaceNamePrefix"])
def test_names_of_interfaces_are_refused_or_taken(
    field: str, backend: str, pick_object_tree: Callable[[Random], list[Tree]]
) -> None:
    """A name that the program would not take must end at the configuration: every Service has a rule with it."""
    listed = {"kind": "List", "apiVersion": "v1", "items": pick_object_tree(Random(1))}
    objects = collect(decode_documents(json.dumps(listed).encode(), "input"))
    snapshot = take_snapshot(objects, Family.IPV4, node_facts(objects.nodes, "node1"))
    mode = field[0].upper() + field[1:]
    taken = []
    with temporary_namespace("fuzz") as netns, inside(netns):
        for name in (*HOSTILE_TEXTS, "cni0", "a" * 14, "a" * 15, "a" * 16, "é" * 8, "a+b", "a+", "-", "--"):
            document = {"apiVersion": API_VERSION, "kind": KIND, "detectLocalMode": mode, "detectLocal": {field: name}}
            try:
                config = decode_config(json.dumps(document).encode(), "config").config
            except ConfigError:
                continue
            text = render_save(with_base_chains(build_ruleset(snapshot, config, _MACHINE)))
            assert _is_taken(f"iptables-{backend}-restore", text) == "", name
            rules = [line for line in text.split("\n") if f" -i {name}" in line]
            assert all(parse_rule(line)[1].in_interface.startswith(name) for line in rules)
            assert rules
            taken.append(name)

    assert {"cni0", "a" * 14} <= set(taken)


@pytest.mark.parametrize("backend", ["nft", "legacy"])
@pytest.mark.parametrize("family", list(Family))
def test_restore_programs_take_what_odd_objects_become(
    family: Family,
    backend: str,
    pick_object_tree: Callable[[Random], list[Tree]],
    pick_config_tree: Callable[[Random], Tree],
) -> None:
    """150 worlds of mutated objects and configurations, each a test run of the restore program."""
    program = f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-{backend}-restore"
    rule_count = 0
    with temporary_namespace("fuzz") as netns, inside(netns):
        for seed in range(_WORLDS):
            random = Random(seed)
            trees = mutated_tree([*pick_object_tree(random), *pick_object_tree(random)], random, most=8)
            listed = {"kind": "List", "apiVersion": "v1", "items": trees}
            objects = collect(decode_documents(json.dumps(listed).encode(), "input"))
            snapshot = take_snapshot(objects, family, node_facts(objects.nodes, "node1"))
            config = _config(pick_config_tree(random), random)
            text = render_save(with_base_chains(build_ruleset(snapshot, config, _MACHINE)))
            said = _is_taken(program, text)
            assert said == "", f"seed {seed}: {said}\n{text}"
            rule_count += text.count("\n-A ")

    assert rule_count > 10 * _WORLDS
