"""Tables of flows: all of ours hold in the model, and what is no table is refused with its place."""

from fractions import Fraction
from pathlib import Path

import pytest

from kproxy_ipt.testing.flow_table import CaseError, decode_flows
from kproxy_ipt.testing.flows import (
    Expectation,
    Fate,
    canonical_endpoint,
    expected_text,
    fate_of,
    problems_of,
    share_text,
)
from kproxy_ipt.testing.golden import check_case
from kproxy_ipt.testing.golden_case import find_cases
from kproxy_ipt.trace.packet import End, Outcome

_TESTS = Path(__file__).parents[1]
_TABLES = sorted((*_TESTS.glob("flows/*/flows.yaml"), *_TESTS.glob("golden/*/flows.yaml")))
_A, _B = "10.244.1.5:8080", "10.244.2.7:8080"
_HALVES = {_A: Fraction(1, 2), _B: Fraction(1, 2)}


def _outcome(
    end: End = End.ACCEPTED, *, share: Fraction = Fraction(1), to: str = "", masqueraded: bool = False
) -> Outcome:
    return Outcome(
        end=end,
        share=share,
        destination=to or "10.96.0.10",
        destination_port=8080 if to else 80,
        translated=bool(to),
        masqueraded=masqueraded,
    )


@pytest.mark.parametrize("table", _TABLES, ids=lambda table: table.parent.name)
def test_packets_go_where_the_reference_says(table: Path) -> None:
    """Endpoints, shares, masquerading, refusals and drops of every situation are those written down by hand."""
    result = check_case(table.parent)

    assert result.errors == ()
    assert [(flow.name, flow.problems) for flow in result.flows if flow.problems] == []


def test_the_tables_cover_the_reference() -> None:
    """There are many situations with all kinds of outcomes, and no case of flows is without a table."""
    expected = [flow for table in _TABLES for flow in decode_flows(table.read_bytes(), str(table)).flows]
    words = {key for one in expected for key in one.expectation.shares}

    assert len(_TABLES) >= 60
    assert len(expected) >= 350
    assert words >= {"rejected", "dropped", "untouched"}
    assert {table.parent for table in _TABLES} >= set(find_cases([_TESTS / "flows"]))
    assert {one.flow.protocol for one in expected} == {"tcp", "udp", "sctp"}


def test_outcomes_are_added_up_by_endpoint() -> None:
    """Two ways to one endpoint are one share; one way of two that is masqueraded is told."""
    third = Fraction(1, 3)
    fate = fate_of(
        (
            _outcome(share=third, to="10.244.1.5", masqueraded=True),
            _outcome(share=third, to="10.244.1.5"),
            _outcome(End.DROPPED, share=third),
        )
    )

    assert fate.shares == {_A: 2 * third, "dropped": third}
    assert str(fate) == f"{_A} 2/3 partly masqueraded, dropped 1/3"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (_outcome(), "untouched"),
        (_outcome(End.REJECTED), "rejected"),
        (_outcome(End.REJECTED, to="10.244.1.5"), "rejected"),
        (_outcome(to="fd00::5", masqueraded=True), "[fd00::5]:8080 masqueraded"),
    ],
)
def test_fate_is_told_in_words(outcome: Outcome, text: str) -> None:
    """What ends counts more than what was translated."""
    assert str(fate_of((outcome,))) == text


@pytest.mark.parametrize(
    ("expectation", "number"),
    [
        (Expectation(shares=_HALVES), 0),
        (Expectation(shares={_A: Fraction(1, 3), _B: Fraction(2, 3)}), 2),
        (Expectation(shares={_A: Fraction(1)}), 2),
        (Expectation(shares={"rejected": Fraction(1)}), 3),
        (Expectation(shares=_HALVES, masqueraded=True), 1),
        (Expectation(shares=_HALVES, masqueraded=False), 1),
        (Expectation(shares=_HALVES, masqueraded=frozenset({_A})), 0),
        (Expectation(masqueraded=frozenset({_B})), 2),
    ],
)
def test_each_deviation_is_a_problem(expectation: Expectation, number: int) -> None:
    """A wrong share, a missing or further endpoint and a wrong source are told one by one."""
    fate = Fate(shares=_HALVES, masqueraded=frozenset({_A}), unmasqueraded=frozenset({_B}))

    assert len(problems_of(expectation, fate)) == number


def test_probabilities_of_ten_digits_are_the_shares_meant() -> None:
    """0.33333333349 is a third; a thousandth less is not."""
    third = {_A: Fraction("0.33333333349"), _B: Fraction("0.66666666651")}
    meant = Expectation(shares={_A: Fraction(1, 3), _B: Fraction(2, 3)})

    assert problems_of(meant, Fate(shares=third)) == ()
    assert len(problems_of(meant, Fate(shares={_A: Fraction("0.332"), _B: Fraction("0.668")}))) == 2
    assert share_text(third[_A]) == "1/3"
    assert share_text(Fraction("0.123456789")) == "10/81"
    assert share_text(Fraction("0.41421356")) == "0.414214"


def test_expectation_is_shown_like_a_fate() -> None:
    """Both stand below each other in reports."""
    assert expected_text(Expectation(shares={_A: Fraction(1)}, masqueraded=False)) == f"{_A}, not masqueraded"
    assert expected_text(Expectation(shares=_HALVES, masqueraded=True)) == f"{_A} 1/2 masqueraded, {_B} 1/2 masqueraded"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("010.244.1.5:80", "10.244.1.5:80"),
        ("[FD00::5]:80", "[fd00::5]:80"),
        ("fd00::5:80", None),
        ("[10.0.0.1]:80", None),
        ("10.0.0.1", None),
        ("10.0.0.1:0", None),
        ("10.0.0.1:65536", None),
        ("10.0.0.1:http", None),
    ],
)
def test_endpoints_are_read_canonically(text: str, endpoint: str | None) -> None:
    """IPv6 addresses need brackets, ports a number from 1 to 65535."""
    assert canonical_endpoint(text) == endpoint


def test_lists_are_taken_apart() -> None:
    """Each source with each destination is a flow of its own, with the index of its line."""
    text = b"flows:\n- {from: [pod, 192.0.2.9], to: [10.96.0.1, 'FD00::1'], port: 80, is: rejected, title: x}\n"

    assert [one.name for one in decode_flows(text, "flows.yaml").flows] == [
        "flows[0] pod -> 10.96.0.1:80/tcp (x)",
        "flows[0] pod -> [fd00::1]:80/tcp (x)",
        "flows[0] 192.0.2.9 -> 10.96.0.1:80/tcp (x)",
        "flows[0] 192.0.2.9 -> [fd00::1]:80/tcp (x)",
    ]


_GOOD = "from: pod, to: 10.96.0.1, port: 80"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"{_GOOD}", "flows[1]: expected either reaches or is"),
        (f"{_GOOD}, is: dropped, reaches: [10.0.0.1:80]", "flows[1]: expected either reaches or is"),
        (f"{_GOOD}, is: lost", "flows[1].is: invalid enum value 'lost'"),
        (f"{_GOOD}, is: dropped, ports: 3", "flows[1]: object contains unknown field ports"),
        ("from: pod, to: 10.96.0.1, port: '80', is: dropped", "flows[1].port: expected int, got str"),
        ("from: pod, to: 10.96.0.1, port: 0, is: dropped", "flows[1].port: found 0, expected 1 to 65535"),
        ("from: pods, to: 10.96.0.1, port: 80, is: dropped", "flows[1].from: found 'pods', expected an IP address"),
        ("from: pod, to: web, port: 80, is: dropped", "flows[1].to: found 'web', expected an IP address"),
        ("from: pod, port: 80, is: dropped", "flows[1]: object missing required field to"),
        (f"{_GOOD}, reaches: [10.0.0.1]", "flows[1].reaches: found '10.0.0.1', expected ADDRESS:PORT"),
        (f"{_GOOD}, reaches: []", "flows[1].reaches: expected at least one endpoint; say `is: rejected` where none is"),
        (
            f"{_GOOD}, reaches: {{10.0.0.1:80: half}}",
            "flows[1].reaches.10.0.0.1:80: found 'half', expected a share such",
        ),
        (f"{_GOOD}, reaches: {{10.0.0.1:80: 1/2}}", "flows[1].reaches: the shares add up to 1/2, expected 1"),
        (f"{_GOOD}, reaches: [10.0.0.1:80, 10.0.0.1:80]", "flows[1].reaches: the shares add up to 1/2, expected 1"),
        (f"{_GOOD}, is: dropped, masqueraded: true", "flows[1].masqueraded: does not go with is: dropped"),
        (
            f"{_GOOD}, reaches: [10.0.0.1:80], masqueraded: [10.0.0.2:80]",
            "flows[1].masqueraded: 10.0.0.2:80 is not among the endpoints that are reached",
        ),
    ],
)
def test_bad_line_is_refused_with_its_place(line: str, problem: str) -> None:
    """File, index, field, what stands there and what would be right."""
    text = f"flows:\n- {{{_GOOD}, is: dropped}}\n- {{{line}}}\n"

    with pytest.raises(CaseError) as caught:
        decode_flows(text.encode(), "shop/flows.yaml")

    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(f"shop/flows.yaml: {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("flows: []", "f: flows: expected at least one flow"),
        ("flow: []", "f: object contains unknown field flow"),
        ("[1]", "f: expected object, got array"),
        ("flows: [", "f: bad YAML"),
        ("flows: []\nflows: []\n", "f: duplicate field"),
        ("flows: []\naddresses: {pods: 10.0.0.1}", "f: addresses: object contains unknown field pods"),
        ("flows: []\naddresses: {pod: web}", "f: addresses.pod: found 'web', expected an IP address"),
    ],
)
def test_bad_table_is_refused(text: str, problem: str) -> None:
    """What is wrong with the file as a whole is told as well."""
    with pytest.raises(CaseError) as caught:
        decode_flows(text.encode(), "f")

    assert str(caught.value).startswith(problem)


def test_all_problems_are_told_at_once() -> None:
    """Nobody has to run a check again and again for the next mistake."""
    with pytest.raises(CaseError) as caught:
        decode_flows(b"flows:\n- {from: me, to: you, port: 0}\n- 3\n", "f")

    assert len(caught.value.problems) == 5
