"""What is remembered of syncs."""

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.family import SyncOutcome, SyncRequest
from kproxy_ipt.daemon.status.history import MOST_NOTABLE, MOST_SYNCS, History
from kproxy_ipt.errors import RestoreError
from kproxy_ipt.state.model import ServiceState
from kproxy_ipt.testing.desired import snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service

WEB = ("default", "web")


def _states() -> tuple[ServiceState, ...]:
    return tuple(snapshot_of(service("web"), endpoint_slice("web")).services.values())


def _history() -> History:
    return History(lambda: 5.0)


def test_the_latest_sync_comes_first_and_old_ones_are_forgotten() -> None:
    """The ring holds so many, and no more."""
    history = _history()
    for number in range(MOST_SYNCS + 3):
        history.note(Family.IPV4, SyncRequest(changes={}), SyncOutcome(full=False, bytes=number))

    assert len(history.syncs) == MOST_SYNCS
    assert [record.bytes for record in history.syncs[:2]] == [MOST_SYNCS + 2, MOST_SYNCS + 1]


def test_repairs_are_remembered_longer_than_ordinary_syncs() -> None:
    """A repair of yesterday is still told after a thousand pods came and went."""
    history = _history()
    repair = SyncOutcome(full=True, repaired=(("nat", "KUBE-SERVICES"), ("filter", "INPUT")))
    history.note(Family.IPV4, SyncRequest(changes={}, reason="iptables changed the tables"), repair)
    for _ in range(MOST_SYNCS):
        history.note(Family.IPV4, SyncRequest(changes={}), SyncOutcome(full=False))

    assert not any(record.repaired for record in history.syncs)
    (record,) = history.notable
    assert (record.repaired, record.repaired_chains) == (2, ("nat KUBE-SERVICES", "filter INPUT"))
    assert record.reason == "iptables changed the tables"


def test_a_flushed_table_is_a_small_record() -> None:
    """Only the first of thousands of chains and Services are kept by name."""
    history = _history()
    chains = tuple(("nat", f"KUBE-SVC-{number}") for number in range(9000))
    changes = {("ns", f"web-{number}"): () for number in range(9000)}
    for _ in range(MOST_NOTABLE + 1):
        history.note(Family.IPV4, SyncRequest(changes=changes), SyncOutcome(full=True, repaired=chains))

    (record, *others) = history.notable
    assert len(others) == MOST_NOTABLE - 1
    assert (record.repaired, record.changes) == (9000, 9000)
    assert len(record.repaired_chains) + len(record.changed) < 30


def test_a_failed_sync_changes_no_service() -> None:
    """What the kernel refused as a whole is not what a Service has."""
    history = _history()
    error = RestoreError("refused")
    history.note(Family.IPV4, SyncRequest(changes={WEB: _states()}), SyncOutcome(full=True, error=error))

    assert history.changed_unix_s == {}
    assert history.notable[0].error == "refused"


def test_a_service_that_is_set_aside_was_not_written() -> None:
    """Its sync succeeded for all others."""
    history = _history()
    outcome = SyncOutcome(full=True, set_aside={WEB: "Invalid argument"}, aside={WEB: True})
    history.note(Family.IPV4, SyncRequest(changes={WEB: _states()}), outcome)

    assert history.changed_unix_s == {}
    assert history.notable[0].set_aside == {"default/web": "Invalid argument"}


def test_the_last_change_of_a_service_is_known_until_it_is_gone() -> None:
    """Services that are gone take no memory."""
    history = _history()
    history.note(Family.IPV4, SyncRequest(changes={WEB: _states()}), SyncOutcome(full=False))
    assert history.changed_unix_s == {WEB: 5.0}

    history.note(Family.IPV4, SyncRequest(changes={WEB: ()}), SyncOutcome(full=False))
    assert history.changed_unix_s == {}
