"""
How long the comparison of two Rulesets by behaviour takes.

Compared with the rules of a cluster are: the same again; a dispatch that branches on prefixes (another shape, the same
behaviour); one rule less; another masquerade mark, where every class of packets has another form and must be walked.
"""

import argparse
import ipaddress
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table as Printed

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.ruleset.model import Chain, Rule, Ruleset, Table
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.sources.files import read_paths
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.testing.big_cluster import cluster
from kproxy_ipt.trace.equivalence import Marks, compare_behaviour
from kproxy_ipt.trace.packet import Host

HOST = Host(addresses=frozenset({"192.0.2.10"}))
SERVICES = "KUBE-SERVICES"


def rules(services: int, endpoints: int, *, bit: int = 14) -> Ruleset:
    """The rules of a cluster, jumps from built-in chains included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.json")
        path.write_bytes(cluster(services, endpoints))
        snapshot = take_snapshot(read_paths([str(path)]), Family.IPV4, NodeFacts(name="bench"))
    config = Config(cluster_cidrs=("10.128.0.0/9",), iptables=IptablesConfig(masquerade_bit=bit))
    return with_base_chains(build_ruleset(snapshot, config, MachineFacts()))


def branched(ruleset: Ruleset) -> Ruleset:
    """The same with a chain for each /27 of service addresses."""
    chains = dict(ruleset.tables["nat"].chains)
    branches: dict[str, list[Rule]] = {}
    rest: list[Rule] = []
    for rule in chains[SERVICES].rules:
        if rule.destination.endswith("/32"):
            prefix = ipaddress.ip_network(f"{rule.destination[:-3]}/27", strict=False)
            branches.setdefault(str(prefix), []).append(rule)
        else:
            rest.append(rule)
    jumps = [Rule(destination=prefix, target=Jump(f"KUBE-SVC-{number}")) for number, prefix in enumerate(branches)]
    chains[SERVICES] = Chain(SERVICES, (*jumps, *rest))
    for number, found in enumerate(branches.values()):
        chains[f"KUBE-SVC-{number}"] = Chain(f"KUBE-SVC-{number}", tuple(found))
    return Ruleset(ruleset.family, {**ruleset.tables, "nat": Table("nat", chains)})


def with_one_jump_less(ruleset: Ruleset) -> Ruleset:
    """The same without the first rule of the last service chain."""
    chains = dict(ruleset.tables["nat"].chains)
    name = next(name for name in reversed(chains) if name.startswith("KUBE-SVC-"))
    chains[name] = msgspec.structs.replace(chains[name], rules=chains[name].rules[1:])
    return Ruleset(ruleset.family, {**ruleset.tables, "nat": Table("nat", chains)})


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--endpoints", type=int, default=5)
    options = parser.parse_args()
    one = rules(options.services, options.endpoints)
    rows = {
        "the same": (rules(options.services, options.endpoints), Marks.COMPARED),
        "branched dispatch": (branched(one), Marks.COMPARED),
        "one rule less": (with_one_jump_less(one), Marks.COMPARED),
        "another masquerade bit, marks ignored": (rules(options.services, options.endpoints, bit=15), Marks.IGNORED),
    }
    title = f"{options.services} services x {options.endpoints} endpoints, IPv4"
    table = Printed("compared with", "answer", "classes", "packets walked", "seconds", title=title)
    for name, (other, marks) in rows.items():
        start = time.perf_counter()
        report = compare_behaviour(one, other, HOST, marks=marks)
        seconds = time.perf_counter() - start
        answer = "equal" if report.equal else f"different: {len(report.differences)}"
        table.add_row(name, answer, str(report.classes), str(report.packets), f"{seconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
