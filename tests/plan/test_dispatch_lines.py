"""Shared chains kept up to date: what is read of them, which of them changed, and when they are trees."""

from collections.abc import Iterable
from ipaddress import IPv4Address

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch
from kproxy_ipt.plan.contribution import contribution_of
from kproxy_ipt.plan.dispatch_lines import DispatchLines, SharedLines
from kproxy_ipt.rules import shared_chains
from kproxy_ipt.rules.dispatch_tree import LEAF_RULES, Place
from kproxy_ipt.rules.names import KUBE_NODEPORTS, KUBE_SERVICES
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.rules.shared_chains import PLACES
from kproxy_ipt.ruleset.scan import jumps_to
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.tracker import ServiceName
from kproxy_ipt.testing.desired import snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port

OPTIONS = rule_options(Config(), NodeFacts(name="node1"), MachineFacts(), Family.IPV4, endpoint_count=0)
COUNT = 2 * LEAF_RULES
SERVICES, REFUSED = PLACES["nat_services"], PLACES["filter_services"]


def _name(number: int) -> ServiceName:
    return ("default", f"s{number:03}")


def _lines(number: int, *, network: str = "10.96.0.0", serves: bool = True) -> SharedLines:
    """A Service of a node port: its lines in nat, or without an endpoint those in filter."""
    one = service(
        _name(number)[1],
        cluster_ip=str(IPv4Address(network) + number),
        service_type="NodePort",
        ports=[service_port(80, node_port=30000 + number)],
    )
    states = snapshot_of(one, *([endpoint_slice(one)] if serves else [])).services
    return contribution_of(tuple(states.values()), OPTIONS).shared


class Written:
    """Shared chains of some Services, all of which the kernel has."""

    def __init__(self, numbers: Iterable[int], dispatch: Dispatch = Dispatch.TREE, *, serve: bool = True) -> None:
        self.order: list[ServiceName] = []
        self.lines = DispatchLines(Family.IPV4, self.order)
        self.dispatch = dispatch
        for number in numbers:
            self.put(number, _lines(number, serves=serve))
        self.settle()
        self.lines.commit()

    def put(self, number: int, lines: SharedLines) -> None:
        """A Service that has *lines* from now on."""
        self.order[:] = sorted({*self.order, _name(number)})
        self.lines.put(_name(number), lines)

    def settle(self) -> None:
        """Let the chains follow."""
        self.lines.settle(self.dispatch)

    def chains(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """All chains, as they are given together."""
        return dict(self.lines.chains())

    def parts(self, place: Place) -> set[tuple[str, str]]:
        """The chains that the chain of *place* leads to."""
        chains, found = self.chains(), [(place.table, place.chain)]
        for one in found:
            found += [
                (place.table, target) for line in chains[one] if "services at" in line and (target := jumps_to(line))
            ]
        return set(found[1:])


@pytest.mark.parametrize("dispatch", [Dispatch.LINEAR, Dispatch.TREE])
@pytest.mark.parametrize("serve", [True, False])
def test_one_chain_reads_as_it_does_among_all(dispatch: Dispatch, *, serve: bool) -> None:
    """Rows and parts of trees alike; each line belongs to the chain that it is read from."""
    written = Written(range(COUNT), dispatch, serve=serve)
    chains = written.chains()

    assert {place: written.lines.lines(*place) for place in chains} == chains
    assert all(line.startswith(f"-A {name} ") for (_, name), lines in chains.items() for line in lines)
    assert {(place.table, place.chain) for place in PLACES.values()} <= chains.keys()
    assert bool(written.parts(SERVICES if serve else REFUSED)) is (dispatch is Dispatch.TREE)


def test_chain_that_is_not_there_has_no_lines() -> None:
    """A part of one table's tree is none of the other table's; a row has no parts."""
    written = Written(range(COUNT))
    [part, *_] = written.parts(SERVICES)

    assert written.lines.lines(*part)
    assert written.lines.lines("filter", part[1]) is None
    assert written.lines.lines("nat", "KUBE-FORWARD") is None
    assert Written(range(COUNT), Dispatch.LINEAR).lines.lines(*part) is None


def test_row_is_in_the_order_of_services_whenever_they_came() -> None:
    """The order is the caller's; a Service that it does not name any more has no line."""
    written = Written([5, 1, 3], Dispatch.LINEAR)
    rows = [written.lines.lines("nat", KUBE_NODEPORTS)]
    written.order.remove(_name(3))
    rows.append(written.lines.lines("nat", KUBE_NODEPORTS))

    ports = [[word for line in row or () for word in line.split() if word.startswith("300")] for row in rows]
    assert [list(dict.fromkeys(row)) for row in ports] == [["30001", "30003", "30005"], ["30001", "30005"]]


@pytest.mark.parametrize("dispatch", [Dispatch.LINEAR, Dispatch.TREE])
def test_new_meaning_touches_only_what_it_changes(dispatch: Dispatch) -> None:
    """Touched are the places whose lines differ: of a tree the chains on the way that changed."""
    written = Written(range(COUNT), dispatch)
    before = written.chains()
    written.put(7, _lines(7))
    assert written.lines.touched() == []

    written.put(7, _lines(7, serves=False))
    written.settle()
    after = written.chains()
    differing = {place for place in {*before, *after} if before.get(place) != after.get(place)}

    assert differing <= set(written.lines.touched())
    assert {place.chain for place in PLACES.values() if (place.table, place.chain) in differing} == {
        KUBE_SERVICES,
        KUBE_NODEPORTS,
        "KUBE-EXTERNAL-SERVICES",
    } or dispatch is Dispatch.TREE
    assert len(written.lines.touched()) < len(after) or dispatch is Dispatch.LINEAR


def test_way_to_a_tree_does_not_matter() -> None:
    """Services that came, changed twice between two looks, went and came back leave what all at once leave."""
    written = Written(range(COUNT // 2))
    for number in range(COUNT):
        written.put(number, _lines(number, network="10.97.0.0", serves=number % 3 > 0))
        written.put(number, _lines(number, serves=number % 3 > 0))
    written.put(4, {})
    written.settle()
    written.put(4, _lines(4))
    written.settle()

    fresh = Written(())
    for number in range(COUNT):
        fresh.put(number, _lines(number, serves=number % 3 > 0))
    fresh.settle()
    assert written.chains() == fresh.chains()


def test_touched_chains_come_after_those_that_they_lead_to_and_gone_ones_first() -> None:
    """In this order they can be written one by one; a row that was a tree leaves its parts to be deleted."""
    written = Written(())
    for number in range(8 * LEAF_RULES):
        written.put(number, _lines(number))
    written.settle()
    chains, touched = written.chains(), written.lines.touched()
    written.lines.commit()
    parts = written.parts(SERVICES)
    for number in range(8 * LEAF_RULES):
        written.put(number, {})
    written.settle()
    left = written.lines.touched()

    assert written.parts(SERVICES) == set()
    assert {*parts, ("nat", KUBE_SERVICES)} <= set(touched)
    assert len(touched) == len(set(touched))
    for place in touched:
        leads_to = {(place[0], jumps_to(line)) for line in chains[place]} & set(touched)
        assert all(touched.index(place) > touched.index((table, name)) for table, name in leads_to if name)
    assert parts <= set(left)
    assert max(left.index(part) for part in parts) < left.index(("nat", KUBE_SERVICES))


def test_commit_is_what_ends_a_touch() -> None:
    """Until then chains stay touched, however often they are settled."""
    written = Written(range(COUNT))
    written.put(1, _lines(1, network="10.97.0.0"))
    written.settle()
    written.settle()
    assert ("nat", KUBE_SERVICES) in written.lines.touched()

    written.lines.commit()
    assert written.lines.touched() == []


def test_places_are_trees_as_configured_or_as_the_kernel_has_them() -> None:
    """Between the bounds a tree that was found stays one; without it, it is a row."""
    found: dict[tuple[Place, ...], tuple[bool, bool]] = {}
    for known in ((), (SERVICES,)):
        written = Written((), Dispatch.AUTO)
        for number in range(900):
            written.put(number, _lines(number))
        written.lines.learn(known)
        written.settle()
        found[known] = (SERVICES in written.lines.branched, bool(written.parts(SERVICES)))

    assert found == {(): (False, False), (SERVICES,): (True, True)}
    assert Written(range(3)).lines.branched == frozenset(PLACES.values())


def test_rules_are_counted_as_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of the same Services make no tree of a row, and rules that go make a row of a tree."""
    monkeypatch.setattr(shared_chains, "TREE_FROM", 8)
    monkeypatch.setattr(shared_chains, "ROW_BELOW", 6)
    written, forms = Written(range(7), Dispatch.AUTO), []
    for change in (
        *((number, _lines(number, network="10.97.0.0")) for number in range(7)),
        (7, _lines(7)),
        *((number, _lines(number, network="10.98.0.0")) for number in range(7)),
        *((number, {}) for number in range(2)),
        (2, {}),
    ):
        written.put(*change)
        written.settle()
        forms.append(SERVICES in written.lines.branched)

    assert forms == [False] * 7 + [True] * 10 + [False]


def test_tree_that_becomes_a_row_leaves_its_parts_to_be_deleted() -> None:
    """And the other way round the first chain is written after the new parts."""
    written = Written(range(COUNT))
    parts = written.parts(SERVICES)
    written.dispatch = Dispatch.LINEAR
    written.settle()
    touched = written.lines.touched()

    assert {*parts, ("nat", KUBE_SERVICES)} <= set(touched)
    assert all(written.lines.lines(*part) is None for part in parts)
    assert len(written.lines.lines("nat", KUBE_SERVICES) or ()) == COUNT


@pytest.mark.parametrize("dispatch", [Dispatch.LINEAR, Dispatch.TREE])
def test_every_line_knows_its_service(dispatch: Dispatch) -> None:
    """Wherever it stands; a way to a part of a tree, and a line that nobody has, are no Service's."""
    written = Written(range(COUNT), dispatch)
    lines = [line for rows in written.chains().values() for line in rows]
    own = [line for line in lines if "services at" not in line]

    assert {written.lines.service_of(line) for line in own} == {_name(number) for number in range(COUNT)}
    assert all(f'"{"/".join(written.lines.service_of(line) or ())}' in line for line in own)
    assert {written.lines.service_of(line) for line in lines if line not in own} <= {None}
    assert written.lines.service_of("-A KUBE-SERVICES -j ACCEPT") is None
