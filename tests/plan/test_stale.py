"""Chains that go: callers before those that they jump to, whatever their names."""

from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.plan.stale import deletion_order, kept_for_others
from kproxy_ipt.ruleset.scan import SavedChain, SavedTables

_NAMES = tuple("ABCDEFGH")


def _tables(jumps: dict[str, list[str]]) -> SavedTables:
    chains = {
        name: SavedChain(name, "-", tuple(f"-A {name} -j {target}" for target in targets))
        for name, targets in jumps.items()
    }
    return SavedTables({"nat": chains})


@given(st.permutations(_NAMES), st.lists(st.tuples(st.sampled_from(_NAMES), st.sampled_from(_NAMES))))
def test_callers_come_first(order: list[str], pairs: list[tuple[str, str]]) -> None:
    """Of any chains without circles: all are there once, and none before a chain that jumps to it."""
    jumps = {name: [target for source, target in pairs if source == name and target > name] for name in order}

    found = deletion_order(_tables(jumps), "nat", order)

    assert sorted(found) == sorted(order)
    assert all(found.index(name) < found.index(target) for name, targets in jumps.items() for target in targets)


def test_circles_and_unknown_chains_end() -> None:
    """Rules that no kernel takes, and chains that are not there, lose no name and hang nothing."""
    found = deletion_order(_tables({"A": ["B"], "B": ["A", "X"]}), "nat", ["A", "B", "C"])

    assert sorted(found) == ["A", "B", "C"]


class _Watched(Mapping[str, SavedChain]):
    """Chains that may be looked at a few times each: a walk in circles fails instead of hanging."""

    def __init__(self, chains: Mapping[str, SavedChain]) -> None:
        self._chains = chains
        self._looks = 8 * len(chains)

    def __getitem__(self, name: str) -> SavedChain:
        self._looks -= 1
        assert self._looks >= 0
        return self._chains[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chains)

    def __len__(self) -> int:
        return len(self._chains)


def test_circle_behind_a_chain_ends() -> None:
    """It is entered from outside, so its own chains are told apart by having been passed; the way in comes first."""
    chains = _tables({"A": ["B"], "B": ["C"], "C": ["A"], "D": ["B"]}).tables["nat"]

    found = deletion_order(SavedTables({"nat": _Watched(chains)}), "nat", ["A", "B", "C", "D"])

    assert sorted(found) == ["A", "B", "C", "D"]
    assert found[0] == "D"


def test_each_chain_that_others_lead_to_is_kept_with_one_that_does() -> None:
    """Through chains that should go as well, from chains of others alone; in a table that is not there, none."""
    tables = _tables({"MINE": ["A"], "KUBE-SERVICES": ["C"], "A": ["B"], "B": [], "C": ["D"], "D": []})

    assert kept_for_others(tables, "nat", ["A", "B", "C", "D"]) == {"A": "MINE", "B": "A"}
    assert kept_for_others(tables, "nat", ["C"], counts_not=lambda _table, _chain: False) == {"C": "KUBE-SERVICES"}
    assert kept_for_others(tables, "filter", ["A"]) == {}
    assert kept_for_others(tables, "nat", []) == {}


def test_table_that_is_not_there_has_an_order_too() -> None:
    """Nothing leads anywhere in it."""
    assert deletion_order(SavedTables({}), "nat", ["A", "B"]) == ["A", "B"]
