"""
A Ruleset whose chains are parsed when they are looked at: for whoever follows one packet through 100,000 rules.

The shallow reader splits the text, which is where a broken listing is noticed; a chain costs its parsing at the first
look and nothing where nobody looks. Counters are not kept.
"""

from collections.abc import Iterator, Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.model import Chain, Ruleset, Table
from kproxy_ipt.ruleset.parse import parse_rule, parse_save
from kproxy_ipt.ruleset.scan import SavedChain, scan_save


class _Chains(Mapping[str, Chain]):
    """The chains of one table by name; a rule that cannot be read is a RulesetError of the chain that holds it."""

    def __init__(self, saved: Mapping[str, SavedChain], family: Family) -> None:
        self._saved = saved
        self._family = family
        self._parsed: dict[str, Chain] = {}

    def __getitem__(self, name: str) -> Chain:
        if name not in self._parsed:
            one = self._saved[name]
            rules = tuple(parse_rule(line, self._saved, family=self._family)[1] for line in one.lines)
            self._parsed[name] = Chain(name, rules, one.policy)
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._saved)

    def __len__(self) -> int:
        return len(self._saved)


def read_save(text: str, family: Family) -> Ruleset:
    """
    Read the output of `iptables-save`; chains are parsed when they are looked at.

    Text of another form, as restore files have it, is parsed at once.

    Raises:
        RulesetError: As `parse_save`; for a rule that cannot be read only when its chain is looked at.
    """
    try:
        saved = scan_save(text)
    except RulesetError:
        return parse_save(text, family)
    return Ruleset(family, {name: Table(name, _Chains(chains, family)) for name, chains in saved.tables.items()})
