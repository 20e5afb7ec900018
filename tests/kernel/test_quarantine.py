"""Services that the real kernel refuses, on both backends and families: they alone are set aside."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import Machine, Target, machine_facts, open_machine
from kproxy_ipt.kernel.backend import Backend
from kproxy_ipt.kernel.command import DEFAULT_TIMEOUT_S, Completed, Running, SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.desired import ApiObject
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.synced_family import SyncedFamily

pytestmark = pytest.mark.kernel

_POISONS = {
    # May stand in POSTROUTING alone, which the kernel sees once PREROUTING leads to it.
    "a target of another hook": "-j MASQUERADE",
    "a match that asks for too much": "-m recent --name X --rcheck --hitcount 70000 --rsource -j RETURN",
    "a group that does not exist": "-m cgroup --path nope -j RETURN",
    "an option that the program does not know": "-j DNAT --nonsense",
}


class _Poisoned(SubprocessRunner):
    """
    Feeds programs another rule in the place of some.

    Attributes:
        changes: Part of a line, and what is fed in its place.
        restores: How many restore programs ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[str, str] = {}
        self.restores = 0

    def run(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Completed:
        return super().run(arguments, stdin=self._changed(stdin), timeout_s=timeout_s)

    def feed(
        self, arguments: Sequence[str], pieces: Iterable[str], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        self.restores += 1
        return super().feed(arguments, map(self._changed, pieces), timeout_s=timeout_s)

    def start(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Running:
        return super().start(arguments, stdin=stdin, timeout_s=timeout_s)

    def _changed(self, text: str) -> str:
        for old, new in self.changes.items():
            text = text.replace(old, new)
        return text


class _Node:
    """Real tables of one family in a namespace, and what writes them."""

    def __init__(self, backend: Backend, family: Family) -> None:
        self.family, self.runner = family, _Poisoned()
        self.machine: Machine = open_machine(Target(backend=backend.value, families=(family,)), self.runner)
        self.synced = SyncedFamily(self.machine, family, facts=machine_facts(self.machine, ensure=True))

    def address(self, kind: int, number: int) -> str:
        """An address: 96 for Services, other numbers for pods."""
        if self.family is Family.IPV4:
            return f"10.{kind}.{number // 250}.{number % 250 + 1}"
        return f"fd00:10:{kind}::{number + 1:x}"

    def target(self, number: int, kind: int = 9) -> str:
        """How the rule of an endpoint ends."""
        address = self.address(kind, number)
        return f"-j DNAT --to-destination {address if self.family is Family.IPV4 else f'[{address}]'}:80"

    def objects(self, numbers: Iterable[int], kind: int = 9) -> list[ApiObject]:
        """Services with one endpoint each."""
        made: list[ApiObject] = []
        for number in numbers:
            one = service(f"s{number:04}", cluster_ip=self.address(96, number))
            made += [one, endpoint_slice(one, [self.address(kind, number)], address_type=self.family.api_name)]
        return made

    @property
    def text(self) -> str:
        """Both tables."""
        return self.machine.iptables[self.family].start_save(("filter", "nat")).text()


@pytest.fixture(params=list(Backend))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Both."""
    return Backend(request.param)


@pytest.fixture(params=list(Family))
def node(request: pytest.FixtureRequest, backend: Backend) -> Iterator[_Node]:
    """Empty tables of each backend and family in turn."""
    with temporary_namespace("aside") as name, inside(name):
        yield _Node(backend, Family(request.param))


@pytest.mark.parametrize("poison", _POISONS)
def test_refused_service_alone_is_set_aside(node: _Node, poison: str) -> None:
    """In the first sync of a node; the others stand, whatever the program says about the line."""
    node.synced.put(*node.objects(range(60)))
    node.runner.changes = {node.target(41): _POISONS[poison]}
    outcome = node.synced.sync()

    assert (outcome.error, [*outcome.set_aside]) == (None, [("default", "s0041")])
    assert node.text.count("--to-destination") == 59
    assert node.runner.restores <= 20


@pytest.mark.parametrize("poison", _POISONS)
def test_refused_change_leaves_the_last_good_rules(node: _Node, poison: str) -> None:
    """The Service answers under its old endpoint, which is still one; another change is written in the same sync."""
    node.synced.put(*node.objects(range(10)))
    node.synced.sync()
    node.runner.changes = {node.target(3, 66): _POISONS[poison]}
    addresses = [node.address(9, 3), node.address(66, 3)]
    node.synced.put(endpoint_slice("s0003", addresses, address_type=node.family.api_name), *node.objects([11]))
    outcome = node.synced.sync()

    assert (outcome.error, dict(outcome.aside)) == (None, {("default", "s0003"): True})
    assert (node.target(3) in node.text, node.target(11) in node.text) == (True, True)


def test_one_of_two_thousand_is_found_in_twenty_runs(
    node: _Node, record_property: Callable[[str, object], None]
) -> None:
    """And all others are written, in the first sync."""
    node.synced.put(*node.objects(range(2000)))
    node.runner.changes = {node.target(1234): _POISONS["a target of another hook"]}
    outcome = node.synced.sync()

    assert (outcome.error, [*outcome.set_aside]) == (None, [("default", "s1234")])
    assert node.text.count("--to-destination") == 1999
    assert node.runner.restores <= 20
    record_property("restores", node.runner.restores)
    record_property("seconds", round(outcome.seconds, 1))


def test_several_are_found_and_come_back(node: _Node) -> None:
    """All in one sync; and once the kernel takes their rules, the next try writes them."""
    node.synced.put(*node.objects(range(200)))
    bad = (0, 1, 150)
    node.runner.changes = {node.target(number): _POISONS["a match that asks for too much"] for number in bad}
    outcome = node.synced.sync()
    node.runner.changes = {}
    later = node.synced.sync(retry=outcome.aside)

    assert sorted(outcome.set_aside) == [("default", f"s{number:04}") for number in bad]
    assert (later.error, len(later.aside), node.text.count("--to-destination")) == (None, 0, 200)
