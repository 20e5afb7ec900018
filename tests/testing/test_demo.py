"""What the demo calls right and wrong, and the report that a person reads."""

import io
from collections.abc import Mapping, Sequence

import pytest
from rich.console import Console

from kproxy_ipt.testing.demo import Result, Scenario, problem_of, report_of
from kproxy_ipt.testing.traffic import Exchange, Outcome, Traffic


def _scenario(*, expected: Sequence[str] = ("a", "b"), sticky: bool = False) -> Scenario:
    return Scenario(
        title="from a pod",
        client="podA",
        address="10.96.0.1",
        port=80,
        expected=dict.fromkeys(expected, 1.0),
        seen="10.244.1.11",
        sticky=sticky,
    )


def _answers(counts: Mapping[str, int], seen: str = "10.244.1.11") -> Traffic:
    answered = [
        Exchange(outcome=Outcome.ANSWERED, name=name, seen_address=seen, took_s=0.0)
        for name, count in counts.items()
        for _ in range(count)
    ]
    return Traffic(tuple(answered))


def _failures(outcome: Outcome, count: int = 20) -> Traffic:
    return Traffic((Exchange(outcome=outcome, took_s=0.0),) * count)


def test_promised_shares_are_no_problem() -> None:
    """Counts near the promised halves pass."""
    assert problem_of(_scenario(), _answers({"a": 440, "b": 460})) == ""


def test_shares_that_are_off_are_a_problem() -> None:
    """A third instead of a half fails."""
    assert problem_of(_scenario(), _answers({"a": 300, "b": 600})) == "shares are off"


def test_single_failed_connection_is_a_problem() -> None:
    """One timeout among hundreds of answers fails."""
    traffic = Traffic((*_answers({"a": 450, "b": 449}).exchanges, *_failures(Outcome.TIMEOUT, 1).exchanges))

    assert problem_of(_scenario(), traffic) == "expected only answered, got {'timeout': 1}"


def test_wrong_source_address_is_a_problem() -> None:
    """A pod that sees the node where it should see the client fails."""
    problem = problem_of(_scenario(), _answers({"a": 450, "b": 450}, seen="192.0.2.10"))

    assert problem == "pods must see 10.244.1.11, not ['192.0.2.10']"


@pytest.mark.parametrize(("counts", "problem"), [({"b": 900}, ""), ({"a": 1, "b": 899}, "not sticky")])
def test_affinity_allows_one_name_alone(counts: dict[str, int], problem: str) -> None:
    """With session affinity a second name fails, however rare."""
    assert problem_of(_scenario(sticky=True), _answers(counts)) == problem


def test_affinity_to_a_stranger_is_a_problem() -> None:
    """With session affinity the one name must be one of the Service."""
    assert problem_of(_scenario(sticky=True), _answers({"stranger": 900})) == "not sticky"


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [(Outcome.TIMEOUT, ""), (Outcome.REFUSED, "expected only timeout, got {'refused': 20}")],
)
def test_packets_that_must_be_dropped_may_not_even_be_refused(outcome: Outcome, problem: str) -> None:
    """Where every packet must be dropped, only a timeout is right."""
    assert problem_of(_scenario(expected=()), _failures(outcome)) == problem


def test_report_fits_eighty_columns_and_names_everyone() -> None:
    """Each expected name has a line with count, share and expectation, the silent one too; failures are counted."""
    traffic = Traffic((*_answers({"a": 90}).exchanges, *_failures(Outcome.TIMEOUT, 10).exchanges))
    text = io.StringIO()
    Console(file=text, width=80).print(report_of([Result(_scenario(), traffic, "broken")]))

    words = [line.split() for line in text.getvalue().splitlines()]
    assert ["from", "a", "pod", "to", "10.96.0.1", "TCP", "port", "80"] in words
    assert [(line[:3], line[-1]) for line in words if line and line[0] in {"a", "b", "nobody"}] == [
        (["a", "90", "90.0%"], "50.0%"),
        (["b", "0", "0.0%"], "50.0%"),
        (["nobody", "10", "10.0%"], "none"),
    ]
    assert max(len(line) for line in text.getvalue().splitlines()) <= 80
