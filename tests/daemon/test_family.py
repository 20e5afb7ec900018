"""Syncs of one family over the programs of a machine in memory."""

from collections.abc import Callable

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.family import EVERYTHING, SyncRequest
from kproxy_ipt.errors import KernelError, RestoreError
from kproxy_ipt.testing.fake_machine import FakeMachine
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.testing.synced_family import FamilyInMemory

V4 = Family.IPV4
WEB, API = service("web"), service("api", cluster_ip="10.96.0.20")


def _two_services() -> FamilyInMemory:
    return FamilyInMemory(WEB, API, endpoint_slice(WEB), endpoint_slice(API, ["10.244.1.3"]))


@pytest.fixture
def synced() -> FamilyInMemory:
    """Two Services, written."""
    made = _two_services()
    made.sync()
    return made


def test_first_sync_reads_and_writes_everything() -> None:
    """Nobody knows what the kernel has before."""
    made = _two_services()
    outcome = made.sync()

    assert (outcome.full, outcome.error, made.machine.saves, outcome.repaired) == (True, None, 1, ())
    assert outcome.rules["nat"] == outcome.rules_written["nat"] - 3
    assert "10.244.1.2:80" in made.text


def test_change_is_written_without_reading(synced: FamilyInMemory) -> None:
    """No listing is made, and only the chains of the Service are fed to the program."""
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))
    outcome = synced.sync()

    assert (outcome.full, outcome.transactions, synced.machine.saves) == (False, 1, 1)
    assert outcome.bytes == len(synced.machine.inputs[-1])
    assert "KUBE-SERVICES" not in synced.machine.inputs[-1]


def test_sync_without_a_change_runs_no_program(synced: FamilyInMemory) -> None:
    """Nothing to do is nothing done."""
    runs = len(synced.machine.inputs)
    outcome = synced.sync()

    assert (outcome.transactions, len(synced.machine.inputs), synced.machine.saves) == (0, runs, 1)


def test_refused_change_is_written_by_the_next_sync(synced: FamilyInMemory) -> None:
    """After a failure the kernel is read again, and nothing is lost."""
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))
    synced.machine.broken = KernelError("no end after 300 s, killed")
    failed = synced.sync()
    synced.machine.broken = None
    outcome = synced.sync()

    assert (str(failed.error), synced.machine.saves) == ("no end after 300 s, killed", 2)
    assert (outcome.full, outcome.error) == (True, None)
    assert "10.244.1.9:80" in synced.text


def test_options_given_to_a_sync_that_failed_count(synced: FamilyInMemory) -> None:
    """The rules remember them; the caller need not say them again."""
    synced.set_options(Config(iptables=IptablesConfig(masquerade_all=True, localhost_node_ports=False)))
    synced.machine.broken = KernelError("broken")
    synced.sync()
    synced.machine.broken = None
    outcome = synced.sync_of_family.run(SyncRequest(changes={}), set())

    assert (outcome.full, outcome.error) == (True, None)


def test_comparison_repairs_and_names_what_others_changed(synced: FamilyInMemory) -> None:
    """A flushed chain and a missing jump are drift; a change of ours is none."""
    kernel = synced.machine.kernels[V4]
    kernel.restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
    outcome = synced.sync("somebody else")

    assert outcome.repaired == (("nat", "KUBE-SERVICES"),)
    assert "10.96.0.10/32" in synced.text


def test_comparison_with_a_change_calls_nothing_drift(synced: FamilyInMemory) -> None:
    """What is ours and what is drift cannot be told apart then."""
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))

    assert synced.sync("somebody else").repaired == ()


def test_repair_that_succeeds_in_the_end_is_one(synced: FamilyInMemory) -> None:
    """Others were still writing when it was tried first: a failure hides nothing."""
    synced.sync()
    synced.machine.kernels[V4].restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
    synced.machine.broken = KernelError("busy")
    failed = synced.sync("somebody else")
    synced.machine.broken = None

    assert (failed.repaired, synced.sync("somebody else").repaired) == ((), (("nat", "KUBE-SERVICES"),))


def test_repair_that_is_refused_at_first_is_one(synced: FamilyInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain was deleted between reading and writing: the second run of the same sync repairs."""
    synced.sync()
    synced.machine.kernels[V4].restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
    answers = ["\nline 3: RULE_APPEND failed (No such file or directory): rule in chain KUBE-SERVICES"]
    restore = synced.machine._restore
    monkeypatch.setattr(
        synced.machine, "_restore", lambda kernel, text: answers.pop() if answers else restore(kernel, text)
    )
    outcome = synced.sync("somebody else")

    assert (outcome.error, outcome.repaired) == (None, (("nat", "KUBE-SERVICES"),))


def test_refused_service_is_set_aside_and_others_are_written(synced: FamilyInMemory) -> None:
    """In the same run; the reason names the Service and the rule."""
    synced.machine.refused = {"10.244.66.6"}
    synced.put(endpoint_slice(WEB, ["10.244.66.6"]))
    synced.put(endpoint_slice(API, ["10.244.1.8"]))
    outcome = synced.sync()

    assert (outcome.error, len(outcome.aside), [*outcome.set_aside]) == (None, 1, [("default", "web")])
    assert "10.244.66.6" in outcome.set_aside["default", "web"]
    assert "10.244.1.8:80" in synced.text
    assert "10.96.0.10" not in synced.text


def test_service_set_aside_comes_back_with_its_next_meaning(synced: FamilyInMemory) -> None:
    """Nothing else is read or written for it."""
    synced.machine.refused = {"10.244.66.6"}
    synced.put(endpoint_slice(WEB, ["10.244.66.6"]))
    synced.sync()
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))
    outcome = synced.sync()

    assert (outcome.full, len(outcome.aside)) == (False, 0)
    assert "10.244.1.9:80" in synced.text


def test_service_set_aside_is_tried_again_on_request(synced: FamilyInMemory) -> None:
    """The kernel may have got what it lacked; a comparison alone does not ask for it."""
    synced.machine.refused = {"10.244.66.6"}
    synced.put(endpoint_slice(WEB, ["10.244.66.6"]))
    synced.sync()
    still = synced.sync(retry={("default", "web")})
    synced.machine.refused = set()
    compared = synced.sync(EVERYTHING)
    outcome = synced.sync(retry={("default", "web")})

    counts = (len(still.aside), [*still.set_aside], len(compared.aside), len(outcome.aside))
    assert counts == (1, [("default", "web")], 1, 0)
    assert "10.244.66.6:80" in synced.text


def test_refused_line_of_a_shared_chain_leads_to_its_service(synced: FamilyInMemory) -> None:
    """A dispatch rule is as much the Service's as its chains."""
    synced.machine.refused = {'"default/bad cluster IP"'}
    synced.put(service("bad", cluster_ip="10.96.0.66"))
    synced.put(endpoint_slice("bad", ["10.244.1.6"]))
    outcome = synced.sync()

    assert [*outcome.set_aside] == [("default", "bad")]
    assert "10.96.0.66" not in synced.text


def test_refused_rule_of_nobody_fails_the_sync(synced: FamilyInMemory) -> None:
    """Where no Service is to blame, setting one aside would help nobody."""
    synced.machine.refused = {"-j MASQUERADE"}
    synced.machine.kernels[V4].restore("*nat\n:KUBE-POSTROUTING - [0:0]\nCOMMIT\n")
    outcome = synced.sync("somebody else")

    assert isinstance(outcome.error, RestoreError)
    assert (len(outcome.aside), outcome.set_aside) == (0, {})


def test_very_many_refused_services_are_an_error() -> None:
    """Then something else is wrong; the node says so, and goes on with the next run."""
    made = _two_services()
    made.machine.refused = {"KUBE-SEP-"}
    for number in range(30):
        made.put(service(f"s{number}", cluster_ip=f"10.96.1.{number}"))
        made.put(endpoint_slice(f"s{number}", [f"10.245.0.{number}"]))
    outcomes = [made.sync(), made.sync()]

    assert [len(outcome.set_aside) for outcome in outcomes] == [20, 12]
    assert [outcome.error is None for outcome in outcomes] == [False, True]


def test_drift_below_a_partial_sync_sets_nobody_aside(synced: FamilyInMemory) -> None:
    """A chain that somebody deleted makes a rule of ours fail; a comparison repairs it."""
    kernel = synced.machine.kernels[V4]
    lines = [line for line in kernel.save().splitlines() if "-j KUBE-MARK-MASQ" in line]
    deleted = "".join(f"{line.replace('-A', '-D', 1)}\n" for line in lines)
    mark = "-D KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n-X KUBE-MARK-MASQ\n"
    kernel.restore(f"*nat\n{deleted}{mark}COMMIT\n")
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))
    outcome = synced.sync()

    assert (outcome.full, outcome.error, len(outcome.aside)) == (True, None, 0)
    assert ":KUBE-MARK-MASQ" in synced.text


def test_flows_are_looked_at_only_when_a_udp_service_changed(synced: FamilyInMemory) -> None:
    """TCP Services never need a listing of connection tracking; a comparison by schedule looks at all."""
    synced.put(service("dns", cluster_ip="10.96.0.53", ports=[service_port(53, protocol="UDP")]))
    synced.sync()
    changed = synced.sync_of_family.flows.pending()
    synced.sync_of_family.flows.reconciled(changed)
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))
    synced.sync()
    quiet = synced.sync_of_family.flows.pending().is_empty
    synced.sync(EVERYTHING)

    assert (changed.is_empty, quiet, synced.sync_of_family.flows.pending().is_empty) == (False, True, False)


def test_failed_sync_leaves_flows_alone(synced: FamilyInMemory) -> None:
    """Flows follow the rules that stand, not those that were refused."""
    synced.machine.broken = KernelError("broken")
    synced.put(service("dns", cluster_ip="10.96.0.53", ports=[service_port(53, protocol="UDP")]))
    synced.sync()

    assert synced.sync_of_family.clean_flows() is None


@pytest.mark.parametrize("bug", [KeyError("x"), RuntimeError("y")])
def test_bug_is_not_taken_for_a_failure_of_the_kernel(synced: FamilyInMemory, bug: Exception) -> None:
    """Whatever is no error of ours on purpose goes up, so that the process ends and is seen."""

    class Broken(FakeMachine):
        """Its programs cannot even be started, for a reason nobody thought of."""

        run: Callable[..., object] = staticmethod(_raise(bug))  # type: ignore[assignment]

    synced.sync_of_family._machine = Broken().opened()
    synced.put(endpoint_slice(WEB, ["10.244.1.9"]))

    with pytest.raises(type(bug)):
        synced.sync()


def _raise(error: Exception) -> Callable[..., object]:
    def run(*_: object, **__: object) -> object:
        raise error

    return run
