"""
The floor of a sync: the bare restore program, fed with the same rules by nobody who thinks about them.

For a whole cluster on nf_tables that is a run for each 100 Services, the best shape that is known (time of one
transaction grows with rules x chains), then one for the fixed chains of each table; on the legacy backend, where each
transaction copies the table, it is one input for each table.
"""

from collections.abc import Sequence
from pathlib import Path

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch, ShapeConfig
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.plan.stages import Step, pack
from kproxy_ipt.rules.build import Desired, build_ruleset
from kproxy_ipt.rules.names import is_service_chain
from kproxy_ipt.ruleset.edits import EnsureChain, RestoreInput, WriteChain
from kproxy_ipt.ruleset.render import render_chain, render_input
from kproxy_ipt.sources.files import read_paths
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.snapshot import take_snapshot

SERVICES_PER_INPUT = 100
CLUSTER_CIDR = "10.128.0.0/9"


def cluster_config(dispatch: str) -> Config:
    """The configuration that everything is measured with."""
    return Config(cluster_cidrs=(CLUSTER_CIDR,), shape=ShapeConfig(dispatch=Dispatch(dispatch)))


def desired_rules(path: Path, dispatch: str) -> Desired:
    """The rules for the objects of a file, in the order that `build_ruleset` gives them."""
    snapshot = take_snapshot(read_paths([str(path)]), Family.IPV4, NodeFacts(name="bench"))
    return build_ruleset(snapshot, cluster_config(dispatch), MachineFacts(nfacct_counters=frozenset()))


def bare_inputs(desired: Desired, backend: str) -> Sequence[str]:
    """The rules of *desired* as restore inputs, to be fed to one run of the program each, in this order."""
    owned: dict[str, list[WriteChain]] = {}
    for name, chain in desired.ruleset.tables["nat"].chains.items():
        if is_service_chain("nat", name):
            # Chains that nobody owns branch the dispatch and jump to those that have an owner: they come last.
            owned.setdefault(desired.owners.get(name, "~"), []).append(WriteChain(name, render_chain(chain)))
    owners = [owned[name] for name in sorted(owned)]
    fixed = [
        Step(
            table,
            tuple(
                WriteChain(name, render_chain(chain))
                for name, chain in chains.chains.items()
                if not is_service_chain(table, name)
            ),
        )
        for table, chains in desired.ruleset.tables.items()
    ]
    size = SERVICES_PER_INPUT if backend == "nft" else max(1, len(owners))
    groups = [
        Step("nat", tuple(edit for edits in owners[start : start + size] for edit in edits))
        for start in range(0, len(owners), size)
    ]
    if backend == "legacy":
        nat = [*groups, *(step for step in fixed if step.table == "nat")]
        others = [step for step in fixed if step.table != "nat"]
        return [_input(nat), *(_input([step]) for step in others)]
    mark = Step("nat", (EnsureChain("KUBE-MARK-MASQ"),))
    return [_input([step]) for step in (mark, *groups, *fixed)]


def _input(steps: Sequence[Step]) -> str:
    return render_input(RestoreInput(pack(steps, staged=False)))


def run_bare(backend: str, inputs: Sequence[str]) -> float:
    """Seconds of the restore program, one run for each input, in the namespace of the calling thread."""
    runner, seconds = SubprocessRunner(), 0.0
    for text in inputs:
        completed = runner.run([f"iptables-{backend}-restore", "--noflush"], stdin=text)
        if completed.exit_status != 0:
            raise RuntimeError(f"the bare restore program failed: {completed.stderr}")
        seconds += completed.seconds
    return seconds


def run_bare_save(backend: str) -> float:
    """Seconds of the save program that lists all tables: the floor of whoever compares."""
    completed = SubprocessRunner().run([f"iptables-{backend}-save"])
    if completed.exit_status != 0:
        raise RuntimeError(f"the bare save program failed: {completed.stderr}")
    return completed.seconds
