"""Which scheduler counts, and when endpoints are grouped."""

import pytest

from kproxy_ipt.config.model import Balance, Config, Scheduler, ShapeConfig
from kproxy_ipt.objects.model import SCHEDULER_ANNOTATION
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.rules.shape import GROUPED_ABOVE_ENDPOINTS, is_grouped
from kproxy_ipt.ruleset.render import render_chain
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service


def _desired(count: int, shape: ShapeConfig, *, annotation: str | None = None, timeout_s: int | None = None) -> Desired:
    web = service(
        annotations=None if annotation is None else {SCHEDULER_ANNOTATION: annotation}, affinity_timeout_s=timeout_s
    )
    addresses = [f"10.{200 + number // 60000}.{number // 250 % 240}.{number % 250 + 1}" for number in range(count)]
    return desired_for(web, endpoint_slice(web, addresses), config=Config(shape=shape))


def _modes(desired: Desired) -> set[str]:
    lines = [line for chain in desired.ruleset.tables["nat"].chains.values() for line in render_chain(chain)]
    return {line.partition("--mode ")[2].split(" ")[0] for line in lines if "--mode" in line}


@pytest.mark.parametrize("configured", [*Scheduler])
@pytest.mark.parametrize(
    ("annotation", "counts"), [(None, None), ("rr", "nth"), ("random", "random"), ("sh", None), ("", None)]
)
def test_annotation_counts_before_the_configuration(
    configured: Scheduler, annotation: str | None, counts: str | None
) -> None:
    """What is not understood is as if it were not there."""
    expected = counts or {Scheduler.RR: "nth", Scheduler.RANDOM: "random"}[configured]

    assert {expected} == _modes(_desired(3, ShapeConfig(scheduler=configured), annotation=annotation))


@pytest.mark.parametrize("balance", [*Balance])
@pytest.mark.parametrize("count", [2, 1000, 1500, 1501, 5000])
def test_groups_follow_from_configuration_and_number(balance: Balance, count: int) -> None:
    """`auto` is a function of the number of endpoints alone."""
    expected = {Balance.LINEAR: False, Balance.GROUPED: True, Balance.AUTO: count > GROUPED_ABOVE_ENDPOINTS}[balance]

    assert is_grouped(Scheduler.RANDOM, count, balance) is expected


@pytest.mark.parametrize("balance", [*Balance])
def test_rotation_is_never_grouped(balance: Balance) -> None:
    """It is exact in one row only."""
    desired = _desired(1600, ShapeConfig(balance=balance, scheduler=Scheduler.RR))
    (chain,) = (one for name, one in desired.ruleset.tables["nat"].chains.items() if name.startswith("KUBE-SVC-"))

    assert len(chain.rules) == 1600


def test_auto_groups_only_the_service_that_is_large() -> None:
    """The number of all endpoints, which decides about comments, does not matter."""
    assert _groups(_desired(1500, ShapeConfig())) == 0
    assert _groups(_desired(1501, ShapeConfig())) > 16


def _groups(desired: Desired) -> int:
    return sum(name.startswith("KUBE-SVC-") for name in desired.owners) - 1


def test_known_clients_are_asked_for_in_one_row_before_groups() -> None:
    """In the order of the linear form, so that a client of several lists goes to the same endpoint."""
    linear = _desired(100, ShapeConfig(balance=Balance.LINEAR), timeout_s=60)
    grouped = _desired(100, ShapeConfig(balance=Balance.GROUPED), timeout_s=60)
    name = next(name for name in linear.owners if name.startswith("KUBE-SVC-"))
    rows = [one.ruleset.tables["nat"].chains[name].rules for one in (linear, grouped)]

    assert rows[0][:100] == rows[1][:100]
    assert len(rows[1]) == 116
