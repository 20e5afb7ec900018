"""Dispatch trees for readers: the services behind them, the row that they stand for, what a part is."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch, ShapeConfig
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.trace.branches import as_rows, part_of_dispatch
from kproxy_ipt.trace.compare import compare, read_services
from kproxy_ipt.trace.graph import build_graph

_SERVICES = 60


def _objects(family: Family) -> tuple[Service | EndpointSlice, ...]:
    """Services with node ports, every third one without endpoints."""
    start, pods = {Family.IPV4: ("10.96.0.", "10.244.1."), Family.IPV6: ("fd00:10:96::", "fd00:10:244::")}[family]
    found: list[Service | EndpointSlice] = []
    for number in range(1, _SERVICES + 1):
        one = service(
            f"s{number}",
            service_type="NodePort",
            cluster_ip=f"{start}{number}",
            ports=(service_port(80, node_port=30000 + number),),
        )
        found.append(one)
        if number % 3:
            found.append(endpoint_slice(one, (f"{pods}{number}",), address_type=family.api_name))
    return tuple(found)


def _rules(family: Family, dispatch: Dispatch) -> Ruleset:
    config = Config(shape=ShapeConfig(dispatch=dispatch))
    return with_base_chains(desired_for(*_objects(family), family=family, config=config))


@pytest.mark.parametrize("family", list(Family))
def test_tree_and_row_are_read_as_the_same_services(family: Family) -> None:
    """All of them, with all entries, and nothing is left over."""
    row, tree = (_rules(family, dispatch) for dispatch in (Dispatch.LINEAR, Dispatch.TREE))

    assert len(tree.tables["nat"].chains) > len(row.tables["nat"].chains)
    assert len(read_services(tree)) == _SERVICES
    assert read_services(tree) == read_services(row)
    assert not compare(row, tree).differs(foreign=True)


@pytest.mark.parametrize("family", list(Family))
def test_row_of_a_tree_holds_the_rules_of_the_row(family: Family) -> None:
    """No rule is lost, none is doubled, and no part remains; rules without a tree stay as they are."""
    row, tree = (_rules(family, dispatch) for dispatch in (Dispatch.LINEAR, Dispatch.TREE))
    found = as_rows(tree)

    assert as_rows(row) is row
    assert {name: table.chains.keys() for name, table in found.tables.items()} == {
        name: table.chains.keys() for name, table in row.tables.items()
    }
    for name, table in row.tables.items():
        for chain in table.chains.values():
            assert sorted(map(repr, found.tables[name].chains[chain.name].rules)) == sorted(map(repr, chain.rules))


def test_picture_of_a_service_is_that_of_the_row() -> None:
    """Whoever looks at one Service need not look at the way through the others."""
    row, tree = (_rules(Family.IPV4, dispatch) for dispatch in (Dispatch.LINEAR, Dispatch.TREE))

    assert build_graph(tree, "default/s7") == build_graph(row, "default/s7")


def test_part_says_what_it_holds() -> None:
    """By the comment of the rule that leads to it; chains of Services and unknown ones are no parts."""
    tree = _rules(Family.IPV4, Dispatch.TREE)
    first = tree.tables["nat"].chains["KUBE-SERVICES"].rules[0].target

    assert isinstance(first, Jump)
    assert part_of_dispatch(tree, first.chain) == "services at 10.96.0.0/24"
    assert part_of_dispatch(tree, "KUBE-SVC-AAAAAAAAAAAAAAAA") == ""
