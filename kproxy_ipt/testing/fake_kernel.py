"""
A kernel in memory: takes restore inputs as `iptables-restore --noflush` does and prints what `iptables-save` would.

It reads the text that is written to the real program, so the renderer is tested as well. Each `*table ... COMMIT`
section is one transaction: all of it or nothing. Like the real kernel it refuses a rule that leads to a missing chain,
and the removal of a chain that a rule still leads to. It knows nothing about packets: `kproxy_ipt.trace` does.

What it leaves out: the order of commands inside a transaction does not matter to it as long as the end is
consistent; matches are not checked; both backends are one.
"""

import re
from collections.abc import Callable, Iterator

from kproxy_ipt.errors import RestoreError, RulesetError
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.ruleset.parse import parse_rule
from kproxy_ipt.ruleset.render import render_input
from kproxy_ipt.ruleset.scan import SavedTables, jumps_to, scan_save

BUILT_IN_CHAINS = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "raw": ("PREROUTING", "OUTPUT"),
}
"""The chains that a table has from the start, in the order of `iptables-save`."""

_TARGETS = frozenset(
    {"ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "CONNMARK", "DNAT", "SNAT", "MASQUERADE", "LOG", "NOTRACK", "TCPMSS"}
)
_COUNTED = re.compile(r"\[(\d+):(\d+)\] (?=-A )")


class _Rule:
    """One rule in the kernel: its line and its counters, which live as long as the rule; copies of tables share it."""

    def __init__(self, line: str, counters: str = "[0:0]") -> None:
        self.line = line
        self.counters = counters


class _Table:
    """The chains of one table: policy and rules by name."""

    def __init__(self, name: str) -> None:
        self.policies = dict.fromkeys(BUILT_IN_CHAINS.get(name, ()), "ACCEPT")
        self.chains: dict[str, list[_Rule]] = {chain: [] for chain in self.policies}

    def copy(self) -> "_Table":
        """A copy to work on; rules themselves never change."""
        copied = _Table("")
        copied.policies = dict(self.policies)
        copied.chains = {name: list(rules) for name, rules in self.chains.items()}
        return copied

    def declare(self, name: str, policy: str) -> None:
        """Create or empty a chain; of a built-in one only the policy is set."""
        if policy != "-":
            self.policies[name] = policy
            self.chains.setdefault(name, [])
        elif name not in self.policies or self.policies[name] == "-":
            self.policies[name] = "-"
            self.chains[name] = []

    def rules_of(self, name: str) -> list[_Rule]:
        """The rules of a chain that must exist."""
        if name not in self.chains:
            raise RestoreError(f"no chain {name} by that name")
        return self.chains[name]

    def delete_rule(self, line: str) -> None:
        """Delete the first rule of the chain that equals *line*, whatever the spelling."""
        rules = self.rules_of(line.split(" ", 2)[1])
        for position, rule in enumerate(rules):
            if rule.line == line or self._meaning(rule.line) == self._meaning(line):
                del rules[position]
                return
        raise RestoreError("bad rule (does a matching rule exist in that chain?)", rule=line)

    def _meaning(self, line: str) -> object:
        try:
            return parse_rule(line, frozenset(self.chains))
        except RulesetError:
            return line

    def remove(self, name: str) -> None:
        """Remove a chain; whether something leads to it is seen at the end of the transaction."""
        if self.rules_of(name):
            raise RestoreError(f"chain {name} is not empty")
        del self.chains[name], self.policies[name]

    def check(self) -> None:
        """Refuse a table in which a rule leads to nowhere."""
        for name, rules in self.chains.items():
            for rule in rules:
                target = jumps_to(rule.line)
                if target is not None and target not in self.chains and target not in _TARGETS:
                    raise RestoreError(f"chain {name} leads to {target}, which does not exist", rule=rule.line)

    def text(self, name: str, *, counters: bool) -> Iterator[str]:
        """The lines of `iptables-save`."""
        yield f"*{name}"
        for chain, policy in self.policies.items():
            yield f":{chain} {policy} [0:0]"
        for rules in self.chains.values():
            for rule in rules:
                yield f"{rule.counters} {rule.line}" if counters else rule.line
        yield "COMMIT"


class FakeKernel:
    """
    Tables of one family, in memory.

    Attributes:
        commits: Number of transactions that were applied.
        on_commit: Called after each of them, to look at what an observer would see between two transactions.
    """

    def __init__(self, save_text: str = "", *, on_commit: Callable[["FakeKernel"], None] | None = None) -> None:
        self._tables: dict[str, _Table] = {}
        self._failing = 0
        self.commits = 0
        self.on_commit: Callable[[FakeKernel], None] | None = None
        self.restore(save_text)
        self.commits = 0
        self.on_commit = on_commit

    def fail_at(self, transaction: int) -> None:
        """Refuse the *transaction*-th transaction from now, counted from 1, once; 0 disarms."""
        self._failing = transaction

    def apply(self, plan: Plan) -> None:
        """
        Carry out *plan*: its transactions, then the removal of tables that are void.

        Raises:
            RestoreError: A transaction was refused; those before it stay.
        """
        self.restore(render_input(plan.restore_input))
        for name in plan.void_tables:
            if any(self._tables[name].chains.values()):
                raise RestoreError(f"table {name} is not void")
            del self._tables[name]

    def restore(self, text: str) -> None:
        """
        Apply a restore input as `iptables-restore --noflush` does; a save text is one as well.

        Raises:
            RestoreError: With number and text of the line, and the number of transactions that were applied before.
        """
        committed, name, section = 0, "", list[tuple[int, str]]()
        for number, line in enumerate(text.split("\n"), start=1):
            if line.startswith("*"):
                name, section = line[1:], []
            elif line == "COMMIT":
                self._commit(name, section, number, committed)
                committed += 1
            elif line and not line.startswith("#"):
                section.append((number, line))

    def _commit(self, name: str, section: list[tuple[int, str]], end: int, committed: int) -> None:
        if self._failing:
            self._failing -= 1
            if not self._failing:
                raise RestoreError("refused as told", line=end, rule="COMMIT", committed=committed)
        table = self._tables[name].copy() if name in self._tables else _Table(name)
        number, line = end, "COMMIT"
        try:
            for number, line in section:  # noqa: B007 - both name the place of a failure
                _execute(table, line)
            number, line = end, "COMMIT"
            table.check()
        except RestoreError as error:
            raise RestoreError(error.message, line=number, rule=error.rule or line, committed=committed) from error
        self._tables[name] = table
        self.commits += 1
        if self.on_commit is not None:
            self.on_commit(self)

    def save(self, *, counters: bool = False) -> str:
        """What `iptables-save` prints, with `-c` if *counters*: built-in chains first, others in order of creation."""
        lines = [line for name, table in self._tables.items() for line in table.text(name, counters=counters)]
        return "".join(f"{line}\n" for line in lines)

    def count(self, part: str, packets: int) -> None:
        """Let every rule whose line holds *part* have counted *packets*."""
        for table in self._tables.values():
            for rules in table.chains.values():
                for rule in rules:
                    if part in rule.line:
                        rule.counters = f"[{packets}:{60 * packets}]"

    def saved(self) -> SavedTables:
        """The same as values."""
        return scan_save(self.save())


def _execute(table: _Table, line: str) -> None:
    """Carry out one line of a restore input."""
    counted = _COUNTED.match(line)
    counters = counted[0].strip() if counted else "[0:0]"
    line = line[counted.end() :] if counted else line
    if line.startswith(":"):
        name, policy = line[1:].split()[:2]
        table.declare(name, policy)
        return
    command, chain = line.split(" ", 2)[:2]
    if command == "-A":
        table.rules_of(chain).append(_Rule(line, counters))
    elif command == "-I":
        position, rest = _insertion(line.split(" ", 3)[2:])
        table.rules_of(chain).insert(position - 1, _Rule(f"-A {chain} {rest}"))
    elif command == "-D":
        table.delete_rule(f"-A {line[3:]}")
    elif command == "-X":
        table.remove(chain)
    else:
        raise RestoreError("unknown command", rule=line)


def _insertion(words: list[str]) -> tuple[int, str]:
    """Position and specification of `-I CHAIN [POSITION] SPECIFICATION`."""
    if words[0].isdecimal():
        return int(words[0]), words[1]
    return 1, " ".join(words)
