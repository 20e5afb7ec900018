"""
What others do to tables by accident: single damages, each with what of ours it takes away.

A damage is done by the iptables programs of the backend in the namespace of the node, as a firewall, a person or a
second proxy would do it. `foreign_lines` and `own_lines` tell afterwards what became of theirs and of ours.
"""

import re
from collections.abc import Callable

import msgspec

from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.lab import Place

TABLES = ("nat", "filter")
_FOREIGN = {
    "nat": ("PREROUTING", '-s 198.51.100.7/32 -m comment --comment "theirs, above" -j RETURN'),
    "filter": ("FORWARD", '-s 198.51.100.8/32 -m comment --comment "theirs, above" -j ACCEPT'),
}
_RULE = re.compile(r"^-A (\S+)(?: .*)? -[jg] (\S+)")


class DamagedTables:
    """
    The tables of one node, for those who break them.

    Attributes:
        lost: `(table, chain)` of ours that the last damage took away or changed.
    """

    def __init__(self, node: Place, backend: BackendWish) -> None:
        self.lost: tuple[tuple[str, str], ...] = ()
        self._node = node
        self._program = f"iptables-{backend}"

    @property
    def is_nft(self) -> bool:
        """Whether `nft` knows these tables."""
        return self._program.endswith("nft")

    def save(self) -> str:
        """Both tables, without counters."""
        return saved_tables(self._node.netns, self._program)

    def rules(self, table: str, chain: str) -> list[str]:
        """The `-A` lines of a chain, in order."""
        return [line for line in self._lines(table) if line.startswith(f"-A {chain} ")]

    def chain(self, prefix: str, table: str = "nat") -> str:
        """The first chain in alphabetical order whose name begins with *prefix*, and that has rules."""
        return min(line.split()[1] for line in self._lines(table) if line.startswith(f"-A {prefix}"))

    def run(self, table: str, *arguments: str) -> None:
        """Run the iptables program."""
        self._node.run(self._program, "-w", "5", "-t", table, *arguments)

    def restore(self, text: str, *, keeps_others: bool = False) -> None:
        """Write tables, or chains where *keeps_others*."""
        self._node.run(f"{self._program}-restore", *(["--noflush"] if keeps_others else []), stdin=text)

    def empty(self, table: str) -> None:
        """Take all rules and chains away at once: chains that came back between two commands could not be deleted."""
        self.restore(f"*{table}\nCOMMIT\n")

    def nft(self, *arguments: str) -> None:
        """Run `nft`."""
        self._node.run("nft", *arguments)

    def add_foreign(self) -> None:
        """Rules and a chain of somebody else, above and below our jumps in the same built-in chains."""
        for table, (base, rule) in _FOREIGN.items():
            below = rule.replace("above", "below")
            text = (
                f"*{table}\n:THEIRS -\n-A THEIRS -s 203.0.113.9/32 -j RETURN\n-I {base} 1 {rule}\n-A {base} {below}\n"
            )
            self.restore(f"{text}-A {base} -d 203.0.113.8/32 -j THEIRS\nCOMMIT\n", keeps_others=True)

    def _lines(self, table: str) -> list[str]:
        return self._node.run(f"{self._program}-save", "-t", table).splitlines()


def saved_tables(netns: str, program: str) -> str:
    """The tables nat and filter of a namespace, as *program* (`iptables-nft`) saves them, without counters."""
    runner = SubprocessRunner()
    with inside(netns):
        text = "".join(runner.run([f"{program}-save", "-t", table]).stdout for table in TABLES)
    return re.sub(r"^(:\S+ \S+) \[.*", r"\1", text, flags=re.MULTILINE)


def foreign_lines(save: str) -> list[str]:
    """Everything of a listing that is not ours, in its order, byte by byte: policies, chains, rules."""
    return [line for line in save.splitlines() if not line.startswith("#") and not _is_own(line)]


def own_lines(save: str) -> list[str]:
    """Our chains and rules, those of a chain in order, and our jumps; by table, chain by chain."""
    table, found = "", []
    for line in save.splitlines():
        table = line[1:] if line.startswith("*") else table
        if _is_own(line) and "CANARY" not in line:
            chain = line.split()[0][1:] if line.startswith(":") else line.split()[1]
            found.append((table, chain, line))
    # Our jumps are put back one by one, so their order among themselves is not promised; that inside of chains is.
    in_order = sorted(found, key=lambda entry: entry if not entry[1].startswith("KUBE-") else entry[:2])
    return [f"{table}: {line}" for table, _, line in in_order]


def _is_own(line: str) -> bool:
    if line.startswith((":KUBE-", "-A KUBE-")):
        return True
    match = _RULE.match(line)
    return match is not None and match[2].startswith("KUBE-")


Damage = Callable[[DamagedTables], None]


def rule_deleted(tables: DamagedTables) -> None:
    """One rule of a chain of a Service."""
    chain = tables.chain("KUBE-SVC-")
    tables.run("nat", "-D", chain, "1")
    tables.lost = (("nat", chain),)


def rule_inserted(tables: DamagedTables) -> None:
    """A rule of somebody else at the top of dispatch."""
    tables.run("nat", "-I", "KUBE-SERVICES", "-s", "198.51.100.9", "-j", "RETURN")
    tables.lost = (("nat", "KUBE-SERVICES"),)


def rule_altered(tables: DamagedTables) -> None:
    """Another address of the same length in the rule that translates."""
    chain = tables.chain("KUBE-SEP-")
    rules = [re.sub(r"(--to-destination \d+\.\d+\.\d+)\.\d+:", r"\1.99:", line) for line in tables.rules("nat", chain)]
    _rewrite(tables, chain, rules)


def rules_exchanged(tables: DamagedTables) -> None:
    """Two rules of one chain in another order; all sizes stay."""
    chain = tables.chain("KUBE-SEP-")
    _rewrite(tables, chain, tables.rules("nat", chain)[::-1])


def _rewrite(tables: DamagedTables, chain: str, rules: list[str]) -> None:
    tables.restore("\n".join(("*nat", f":{chain} -", *rules, "COMMIT", "")), keeps_others=True)
    tables.lost = (("nat", chain),)


def chain_emptied(tables: DamagedTables) -> None:
    """A chain of an endpoint without rules."""
    chain = tables.chain("KUBE-SEP-")
    tables.run("nat", "-F", chain)
    tables.lost = (("nat", chain),)


def chain_deleted(tables: DamagedTables) -> None:
    """A chain of a Service is gone, with all rules that led to it."""
    chain = tables.chain("KUBE-SVC-")
    referring = [line for line in tables.save().splitlines() if line.endswith(f"-j {chain}")]
    gone = "\n".join(line.replace("-A", "-D", 1) for line in referring)
    tables.restore(f"*nat\n{gone}\n-F {chain}\n-X {chain}\nCOMMIT\n", keeps_others=True)
    tables.lost = (("nat", chain), *(("nat", line.split()[1]) for line in referring))


def jump_lost(tables: DamagedTables) -> None:
    """Packets from outside no longer come to us."""
    jump = next(line for line in tables.rules("nat", "PREROUTING") if line.endswith("-j KUBE-SERVICES"))
    tables.restore(f"*nat\n{jump.replace('-A', '-D', 1)}\nCOMMIT\n", keeps_others=True)
    tables.lost = (("nat", "PREROUTING"),)


def dispatch_emptied(tables: DamagedTables) -> None:
    """No Service is found any more."""
    tables.run("nat", "-F", "KUBE-SERVICES")
    tables.lost = (("nat", "KUBE-SERVICES"),)


def filter_chain_emptied(tables: DamagedTables) -> None:
    """Forwarding of marked packets is no longer allowed."""
    tables.run("filter", "-F", "KUBE-FORWARD")
    tables.lost = (("filter", "KUBE-FORWARD"),)


def table_flushed(tables: DamagedTables) -> None:
    """All rules of nat; chains stay."""
    tables.run("nat", "-F")
    tables.lost = (("nat", "PREROUTING"), ("nat", "OUTPUT"), ("nat", "POSTROUTING"))


def table_emptied(tables: DamagedTables) -> None:
    """All rules and chains of nat."""
    tables.empty("nat")
    tables.lost = (("nat", "PREROUTING"), ("nat", "OUTPUT"), ("nat", "POSTROUTING"))


def ruleset_flushed(tables: DamagedTables) -> None:
    """Everything: by `nft flush ruleset`, or table by table."""
    if tables.is_nft:
        tables.nft("flush", "ruleset")
    else:
        for table in TABLES:
            tables.empty(table)
    tables.lost = (("nat", "PREROUTING"), ("filter", "FORWARD"))


def firewall_reloaded(tables: DamagedTables) -> None:
    """A firewall that flushes all and writes its own rules, chain by chain."""
    for table in TABLES:
        own = tables.save().split(f"*{table}\n")[1].split("COMMIT")[0]
        theirs = "\n".join(foreign_lines(own))
        tables.empty(table)
        tables.restore(f"*{table}\n{_with_counters(theirs)}\nCOMMIT\n", keeps_others=True)
    tables.lost = (("nat", "PREROUTING"), ("filter", "FORWARD"))


def rolled_back(tables: DamagedTables) -> None:
    """A restore of a save in which a chain was not there yet, and another one is as it is no longer."""
    chain, stale = tables.chain("KUBE-SVC-"), "KUBE-SEP-AAAAAAAAAAAAAAAA"
    lines = [line for line in tables.save().splitlines() if chain not in line and not line.startswith("#")]
    lines.insert(lines.index("*nat") + 1, f":{stale} -")
    lines.insert(lines.index("COMMIT", lines.index("*nat")), f"-A {stale} -s 10.244.1.98/32 -j KUBE-MARK-MASQ")
    tables.restore(_with_counters("\n".join(lines)) + "\n")
    tables.lost = (("nat", chain), ("nat", stale))


def _with_counters(text: str) -> str:
    return re.sub(r"^(:\S+ \S+)$", r"\1 [0:0]", text, flags=re.MULTILINE)


class Harm(msgspec.Struct, frozen=True):
    """A damage, and whether it takes rules of others with it."""

    damage: Damage
    spares_others: bool = True


HARMS = {
    harm.damage.__name__: harm
    for harm in (
        *map(
            Harm,
            (
                rule_deleted,
                rule_inserted,
                rule_altered,
                rules_exchanged,
                chain_emptied,
                chain_deleted,
                jump_lost,
                dispatch_emptied,
                filter_chain_emptied,
                firewall_reloaded,
                rolled_back,
            ),
        ),
        *(Harm(damage, spares_others=False) for damage in (table_flushed, table_emptied, ruleset_flushed)),
    )
}
"""All damages by name."""
