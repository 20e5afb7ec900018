"""Services that the kernel refuses without a word about whose rule it was, over the programs of a machine in memory."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.write import MOST_ASIDE, MOST_RUNS
from kproxy_ipt.errors import RestoreError
from kproxy_ipt.kernel.backend import Backend
from kproxy_ipt.objects.events import Kind
from kproxy_ipt.testing.desired import ApiObject
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.testing.synced_family import FamilyInMemory

V4 = Family.IPV4
WEB, API = service("web"), service("api", cluster_ip="10.96.0.20")


def _mute(*objects: ApiObject, backend: Backend = Backend.NFT) -> FamilyInMemory:
    """A family whose restore program names the line of the COMMIT alone."""
    made = FamilyInMemory(*objects, backend=backend)
    made.machine.names_rules = False
    return made


def _name(number: int) -> str:
    return f"s{number:04}"


def _cluster(services: int) -> list[ApiObject]:
    objects: list[ApiObject] = []
    for number in range(services):
        block = f"{number // 250}.{number % 250}"
        objects += [
            service(_name(number), cluster_ip=f"10.96.{block}"),
            endpoint_slice(_name(number), [f"10.9.{block}"]),
        ]
    return objects


def _poison(number: int) -> str:
    """The line of an endpoint."""
    return f"--to-destination 10.9.{number // 250}.{number % 250}:80"


@pytest.fixture
def synced() -> FamilyInMemory:
    """Two Services, written."""
    made = _mute(WEB, API, endpoint_slice(WEB), endpoint_slice(API, ["10.244.1.3"]))
    made.sync()
    return made


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("number", [0, 777, 1999])
def test_one_of_two_thousand_is_found_in_twenty_runs(number: int, backend: Backend) -> None:
    """All others are written in the same sync."""
    made = _mute(*_cluster(2000), backend=backend)
    made.machine.refused = {_poison(number)}
    outcome = made.sync()

    assert (outcome.error, [*outcome.set_aside]) == (None, [("default", _name(number))])
    assert made.text.count("--to-destination") == 1999
    assert len(made.machine.inputs) <= 20


@pytest.mark.parametrize("backend", list(Backend))
def test_several_are_found_within_the_bound(backend: Backend) -> None:
    """Far from each other and side by side."""
    made = _mute(*_cluster(500), backend=backend)
    numbers = (3, 4, 200, 499)
    made.machine.refused = {_poison(number) for number in numbers}
    outcome = made.sync()

    assert sorted(outcome.set_aside) == [("default", _name(number)) for number in numbers]
    assert (outcome.error, made.text.count("--to-destination")) == (None, 496)
    assert len(made.machine.inputs) <= MOST_RUNS


def test_very_many_are_found_in_several_syncs() -> None:
    """One sync sets no more than a fixed number aside and runs no more than a fixed number of programs."""
    made = _mute(*_cluster(64))
    made.machine.refused = {_poison(number) for number in range(0, 64, 2)}
    outcomes, runs = [made.sync()], [len(made.machine.inputs)]
    while outcomes[-1].error is not None:
        outcomes.append(made.sync())
        runs.append(len(made.machine.inputs))

    assert sum(len(outcome.set_aside) for outcome in outcomes) == 32
    assert max(len(outcome.set_aside) for outcome in outcomes) <= MOST_ASIDE
    assert max(after - before for before, after in zip([0, *runs], runs, strict=False)) <= MOST_RUNS
    assert made.text.count("--to-destination") == 32


def test_last_good_rules_stay_while_they_serve(synced: FamilyInMemory) -> None:
    """An endpoint that is still one answers under the old rules; other changes are written in the same sync."""
    synced.machine.refused = {"10.244.66.6:80"}
    synced.put(endpoint_slice(WEB, ["10.244.1.2", "10.244.66.6"]), endpoint_slice(API, ["10.244.1.8"]))
    outcome = synced.sync()

    assert (outcome.error, dict(outcome.aside)) == (None, {("default", "web"): True})
    assert "10.244.1.2:80" in synced.text
    assert "10.96.0.10/32" in synced.text
    assert "10.244.1.8:80" in synced.text


def test_last_rules_go_when_they_serve_nobody(synced: FamilyInMemory) -> None:
    """No endpoint of theirs is left; the outcome says that nothing stays."""
    synced.machine.refused = {"10.244.66.6:80"}
    synced.put(endpoint_slice(WEB, ["10.244.66.6"]))
    outcome = synced.sync()

    assert dict(outcome.aside) == {("default", "web"): False}
    assert "10.96.0.10/32" not in synced.text


def test_address_that_was_given_up_goes_with_the_next_sync(synced: FamilyInMemory) -> None:
    """It may be another Service's by now; addresses that are still the Service's are answered."""
    old = service("lb", cluster_ip="10.96.0.30", external_ips=["192.0.2.1", "192.0.2.2"])
    synced.put(old, endpoint_slice("lb", ["10.244.1.7"]))
    synced.sync()
    synced.machine.refused = {"10.244.66.6:80"}
    synced.put(service("lb", cluster_ip="10.96.0.30", external_ips=["192.0.2.2"]))
    synced.put(endpoint_slice("lb", ["10.244.1.7", "10.244.66.6"]))
    synced.sync()

    assert [address in synced.text for address in ("192.0.2.1/32", "192.0.2.2/32", "10.96.0.30/32")] == [
        False,
        True,
        True,
    ]


def test_rules_of_an_earlier_process_stay(synced: FamilyInMemory) -> None:
    """A daemon that starts anew reads what stands; it takes nothing away because it cannot write."""
    before = synced.text
    synced.machine.refused = {"10.244.66.6:80"}
    objects = (WEB, API, endpoint_slice(WEB, ["10.244.1.2", "10.244.66.6"]), endpoint_slice(API, ["10.244.1.3"]))
    restarted = FamilyInMemory(*objects, machine=synced.machine)
    outcome = restarted.sync()

    assert (outcome.error, dict(outcome.aside)) == (None, {("default", "web"): True})
    assert synced.text == before


def test_rules_of_an_earlier_process_stay_in_a_tree() -> None:
    """Lines are found wherever they stand in it."""
    made = _mute(*_cluster(1200))
    made.sync()
    before = made.text
    made.machine.refused = {"10.66.0.1:80"}
    objects = (*_cluster(1200), endpoint_slice(_name(700), ["10.9.2.200", "10.66.0.1"]))
    outcome = FamilyInMemory(*objects, machine=made.machine).sync()

    assert dict(outcome.aside) == {("default", _name(700)): True}
    assert made.text == before


def test_service_set_aside_comes_back_as_soon_as_it_changes(synced: FamilyInMemory) -> None:
    """The next sync writes it, and reads nothing."""
    synced.machine.refused = {"10.244.66.6:80"}
    synced.put(endpoint_slice(WEB, ["10.244.1.2", "10.244.66.6"]))
    synced.sync()
    synced.put(endpoint_slice(WEB, ["10.244.1.2", "10.244.1.9"]))
    outcome = synced.sync()

    assert (outcome.full, len(outcome.aside)) == (False, 0)
    assert "10.244.1.9:80" in synced.text


def test_deleted_service_leaves_nothing_though_set_aside(synced: FamilyInMemory) -> None:
    """What stayed of it goes."""
    synced.machine.refused = {"10.244.66.6:80"}
    synced.put(endpoint_slice(WEB, ["10.244.1.2", "10.244.66.6"]))
    synced.sync()
    synced.remove(Kind.SERVICES, "web")
    outcome = synced.sync()

    assert (outcome.error, len(outcome.aside), "10.96.0.10" in synced.text) == (None, 0, False)


def test_repeated_refusal_takes_a_handful_of_runs(synced: FamilyInMemory) -> None:
    """Only what is tried again is suspected."""
    synced.machine.refused = {"10.244.66.6:80"}
    synced.put(endpoint_slice(WEB, ["10.244.1.2", "10.244.66.6"]))
    synced.sync()
    before = len(synced.machine.inputs)
    outcome = synced.sync(retry=[("default", "web")])

    assert (outcome.error, [*outcome.set_aside]) == (None, [("default", "web")])
    assert len(synced.machine.inputs) - before <= 4


def test_refused_rule_of_nobody_sets_nobody_aside(synced: FamilyInMemory) -> None:
    """With all suspects held back it is refused all the same: they get what they want with the next sync."""
    synced.machine.refused = {"-j MASQUERADE"}
    synced.machine.kernels[V4].restore("*nat\n:KUBE-POSTROUTING - [0:0]\nCOMMIT\n")
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))
    refused = synced.sync("somebody else")
    synced.machine.refused = set()
    outcome = synced.sync()

    assert isinstance(refused.error, RestoreError)
    assert (len(refused.aside), outcome.error, "10.244.1.9:80" in synced.text) == (0, None, True)


def test_machine_that_refuses_everything_sets_nobody_aside(synced: FamilyInMemory) -> None:
    """A kernel that takes no transaction at all has nothing against one Service: all is written when it takes some."""
    synced.machine.refused = {"*nat"}
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))
    refused = synced.sync()
    synced.machine.refused = set()
    outcome = synced.sync()

    assert isinstance(refused.error, RestoreError)
    assert (len(refused.aside), outcome.error, "10.244.1.9:80" in synced.text) == (0, None, True)


def test_every_moment_of_a_search_is_whole(synced: FamilyInMemory) -> None:
    """Between the runs each Service has its old or its new endpoints, and dispatch leads to one of them."""
    seen: set[tuple[bool, bool]] = set()
    kernel = synced.machine.kernels[V4]
    kernel.on_commit = lambda one: seen.add(("10.244.1.2:80" in one.save(), "10.96.0.10/32" in one.save()))
    synced.machine.refused = {"10.244.66.6:80"}
    synced.put(*_cluster(40), endpoint_slice(WEB, ["10.244.1.2", "10.244.66.6"]))
    synced.sync()

    assert seen == {(True, True)}
