"""One fault after the other meets a daemon under changes and traffic: nothing is lost, and it is soon in step again."""

from collections.abc import Iterator

import pytest

from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.testing.fault_lab import FaultLab
from kproxy_ipt.testing.faults import FAULTS, KILL, NamedFault
from kproxy_ipt.testing.promptness import ATTEMPTS

pytestmark = pytest.mark.kernel

_KILLS = 10


@pytest.fixture(scope="module")
def node(backend: BackendWish, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultLab]:
    """A daemon in step with 30 Services, and a steady one."""
    with FaultLab(backend, tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_costs_nothing_but_time(node: FaultLab, fault: NamedFault) -> None:
    """In step within the bound; no update, rule of others, or connection lost; no process, file or descriptor left."""
    if fault.unfit(node.backend):
        pytest.skip(fault.unfit(node.backend))

    outcome = fault.meet(node, attempts=ATTEMPTS)

    assert outcome.is_harmless, outcome
    assert outcome.exchanges > 0


def test_killed_at_any_moment_it_goes_on_as_if_nothing_was(node: FaultLab) -> None:
    """Ten times killed in the middle of changes: each new life is in step within 5 s, and no connection is lost."""
    outcomes = [KILL.meet(node, attempts=ATTEMPTS) for _ in range(_KILLS)]

    assert [] == [outcome for outcome in outcomes if not outcome.is_harmless]
