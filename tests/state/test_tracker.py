"""Events become state and dirty Services; nothing is forgotten before the kernel has it."""

from collections.abc import Iterable

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.events import ApiObject, Gone, Kind, Listed, Put
from kproxy_ipt.objects.model import SCHEDULER_ANNOTATION, EndpointSlice, Service
from kproxy_ipt.state.tracker import TRIGGER_TIME_ANNOTATION, ObjectStore, StateTracker
from kproxy_ipt.testing.desired import put_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service

WEB, API = ("default", "web"), ("default", "api")
TRIGGER = "2026-01-01T00:00:10Z"
TRIGGER_S = 1767225610.0


class Followed:
    """A store and the tracker of one family that follows it."""

    def __init__(self, family: Family = Family.IPV4) -> None:
        self.store = ObjectStore()
        self.tracker = StateTracker(family, "node1")
        self.now_s = 0.0

    def put(self, *objects: ApiObject) -> None:
        """Deliver objects one by one."""
        for one in objects:
            self.take(put_of(one))

    def take(self, event: Listed | Put | Gone) -> int:
        """Deliver an event; how many Services mean something else."""
        return self.tracker.refresh(self.store, self.store.apply(event), now_s=self.now_s)

    def commit(self) -> None:
        """The kernel took everything."""
        self.tracker.commit(self.tracker.pending())

    def dirty(self) -> dict[tuple[str, str], list[str]]:
        """Dirty Services and the endpoints of their first port."""
        return {
            name: [endpoint.text for state in states for endpoint in state.endpoints]
            for name, states in self.tracker.pending().changes.items()
        }


@pytest.fixture
def followed() -> Followed:
    """Service web with one endpoint, written."""
    made = Followed()
    made.put(service("web"), endpoint_slice("web"))
    made.commit()
    return made


def _triggered(of: str, addresses: Iterable[str], text: str = TRIGGER) -> EndpointSlice:
    one = endpoint_slice(of, [*addresses])
    metadata = msgspec.structs.replace(one.metadata, annotations={TRIGGER_TIME_ANNOTATION: text})
    return msgspec.structs.replace(one, metadata=metadata)


def test_event_without_meaning_makes_nothing_dirty(followed: Followed) -> None:
    """Labels and annotations of a Service or a slice decide nothing."""
    followed.put(service("web", annotations={"a": "b"}, labels={"c": "d"}), endpoint_slice("web", labels={"e": "f"}))

    assert followed.dirty() == {}
    assert followed.tracker.skipped == 2


@pytest.mark.parametrize(("wanted", "is_dirty"), [("rr", True), ("random", True), ("wlc", False)])
def test_annotation_with_a_scheduler_has_a_meaning(followed: Followed, wanted: str, *, is_dirty: bool) -> None:
    """Rules follow from it, unless it is not understood."""
    followed.put(service("web", annotations={SCHEDULER_ANNOTATION: wanted}))

    assert bool(followed.tracker.pending().changes) is is_dirty


def test_reading_what_is_pending_changes_nothing(followed: Followed) -> None:
    """A sync that fails finds the same changes again."""
    followed.put(endpoint_slice("web", ["10.0.0.1"]))

    assert followed.tracker.pending() == followed.tracker.pending()
    assert followed.dirty() == {WEB: ["10.0.0.1:80"]}


def test_commit_forgets_what_was_written(followed: Followed) -> None:
    """After a commit nothing is dirty, and nothing has an age."""
    followed.put(endpoint_slice("web", ["10.0.0.1"]))
    followed.commit()

    assert (followed.dirty(), followed.tracker.pending().oldest_s) == ({}, None)


def test_change_during_a_sync_stays_dirty(followed: Followed) -> None:
    """What changed between reading and committing is for the next sync."""
    followed.put(endpoint_slice("web", ["10.0.0.1"]))
    pending = followed.tracker.pending()
    followed.put(endpoint_slice("web", ["10.0.0.2"]), service("api", cluster_ip="10.96.0.20"))
    followed.tracker.commit(pending)

    assert followed.dirty() == {WEB: ["10.0.0.2:80"], API: []}


def test_change_and_back_during_a_sync_is_written_already(followed: Followed) -> None:
    """The kernel has what the Service means in the end."""
    followed.put(endpoint_slice("web", ["10.0.0.1"]))
    pending = followed.tracker.pending()
    followed.put(endpoint_slice("web", ["10.0.0.2"]), endpoint_slice("web", ["10.0.0.1"]))
    followed.tracker.commit(pending)

    assert followed.dirty() == {}


def test_age_is_that_of_the_first_unwritten_change(followed: Followed) -> None:
    """A second change does not make a Service younger."""
    for now_s, address in ((5.0, "10.0.0.1"), (9.0, "10.0.0.2")):
        followed.now_s = now_s
        followed.put(endpoint_slice("web", [address]))

    assert followed.tracker.pending().oldest_s == 5.0


def test_slice_that_moves_to_another_service_makes_both_dirty(followed: Followed) -> None:
    """The label that names the Service may change."""
    followed.put(service("api", cluster_ip="10.96.0.20"))
    followed.commit()
    followed.put(endpoint_slice("api", ["10.0.0.1"], name="web-ipv4"))

    assert followed.dirty() == {WEB: [], API: ["10.0.0.1:80"]}
    assert followed.store.slices(WEB) == []


def test_slice_without_a_service_is_kept_until_its_service_comes() -> None:
    """The order of delivery does not matter."""
    followed = Followed()
    followed.put(endpoint_slice("web", ["10.0.0.1"]))
    alone = followed.dirty()
    followed.put(service("web"))

    assert (alone, followed.dirty()) == ({}, {WEB: ["10.0.0.1:80"]})


@pytest.mark.parametrize("changed", [service("web", cluster_ip="None"), service("web", service_type="ExternalName")])
def test_service_that_is_nothing_to_serve_goes_and_comes_back(followed: Followed, changed: Service) -> None:
    """Headless and ExternalName mean no rules; the slices are remembered meanwhile."""
    followed.put(changed)
    gone = followed.tracker.pending().changes
    followed.commit()
    followed.put(service("web"))

    assert gone == {WEB: ()}
    assert followed.dirty() == {WEB: ["10.244.1.2:80"]}


def test_list_that_lacks_a_service_removes_it(followed: Followed) -> None:
    """Whatever is not in the latest list is gone."""
    followed.take(Listed(Kind.SERVICES, (service("api", cluster_ip="10.96.0.20"),)))

    assert followed.dirty() == {WEB: [], API: []}
    assert (WEB in followed.tracker.states, followed.store.service(WEB)) == (False, None)


def test_list_that_lacks_a_slice_removes_its_endpoints(followed: Followed) -> None:
    """The Service stays, without endpoints."""
    followed.take(Listed(Kind.ENDPOINT_SLICES, ()))

    assert followed.dirty() == {WEB: []}


def test_list_that_says_the_same_makes_nothing_dirty(followed: Followed) -> None:
    """A watch that starts over costs no sync."""
    followed.take(Listed(Kind.SERVICES, (service("web"),)))
    followed.take(Listed(Kind.ENDPOINT_SLICES, (endpoint_slice("web"),)))

    assert followed.dirty() == {}
    assert followed.store.listed == {Kind.SERVICES, Kind.ENDPOINT_SLICES}


def test_what_was_never_there_cannot_go(followed: Followed) -> None:
    """Events about unknown objects touch nothing."""
    events = (Gone(Kind.SERVICES, "a", "b"), Gone(Kind.ENDPOINT_SLICES, "a", "b"), Gone(Kind.NODES, "", "b"))

    assert [followed.store.apply(event) for event in events] == [set(), set(), set()]


def test_service_that_was_deleted_keeps_its_slices_until_they_go(followed: Followed) -> None:
    """A Service that is created again finds its endpoints; once slices go too, nothing is left of it."""
    followed.take(Gone(Kind.SERVICES, *WEB))
    names = followed.store.names()
    followed.take(Gone(Kind.ENDPOINT_SLICES, "default", "web-ipv4"))

    kept = [*followed.store.services(), *followed.store.endpoint_slices()]
    assert (names, followed.store.names(), kept) == ({WEB}, set(), [])


def test_nodes_touch_no_service(followed: Followed) -> None:
    """A Node is kept by name, and goes."""
    touched = followed.store.apply(Put(Kind.NODES, node("node1")))
    known = set(followed.store.nodes)
    followed.store.apply(Listed(Kind.NODES, ()))

    assert (touched, known, followed.store.nodes) == (set(), {"node1"}, {})


def test_findings_stand_until_the_object_is_delivered_again(followed: Followed) -> None:
    """What is odd about an object is known as long as it is so."""
    odd = Finding(
        object="Service default/web", field="", found="x", expected="y", consequence="z", severity=Severity.REJECTED
    )
    followed.take(Gone(Kind.SERVICES, *WEB, (odd,)))
    standing = followed.store.findings()
    followed.put(service("web"))

    assert (standing, followed.store.findings()) == ((odd,), ())


def test_family_sees_its_own_addresses_only() -> None:
    """An IPv6 slice is no news for IPv4."""
    followed = Followed(Family.IPV6)
    followed.put(service("web"), endpoint_slice("web", ["fd00::1"]))

    assert followed.dirty() == {}


def test_trigger_time_of_a_change_is_reported_once(followed: Followed) -> None:
    """It belongs to the sync that writes the change."""
    changed = _triggered("web", ["10.0.0.1"])
    followed.put(changed)
    followed.tracker.note_trigger(changed, since_unix_s=TRIGGER_S - 1)
    first = followed.tracker.pending().trigger_times_s
    followed.commit()
    followed.put(endpoint_slice("web", ["10.0.0.2"]))

    assert (first, followed.tracker.pending().trigger_times_s) == ((TRIGGER_S,), ())


def test_trigger_time_before_the_start_or_without_a_change_does_not_count(followed: Followed) -> None:
    """Latencies of what this process had no chance to write say nothing."""
    changed = _triggered("web", ["10.0.0.1"])
    followed.tracker.note_trigger(changed, since_unix_s=0.0)
    followed.put(changed)
    followed.tracker.note_trigger(changed, since_unix_s=TRIGGER_S)
    followed.tracker.note_trigger(endpoint_slice("web"), since_unix_s=0.0)

    assert followed.tracker.pending().trigger_times_s == ()


def test_trigger_time_that_is_no_time_is_none(followed: Followed) -> None:
    """Anybody can write an annotation; the change counts all the same."""
    changed = _triggered("web", ["10.0.0.1"], "noon")
    followed.put(changed)
    followed.tracker.note_trigger(changed, since_unix_s=0.0)

    assert followed.tracker.pending().trigger_times_s == ()
    assert followed.dirty() == {WEB: ["10.0.0.1:80"]}


def test_trigger_time_of_a_change_during_a_sync_is_kept(followed: Followed) -> None:
    """It is reported with the sync that writes that change."""
    followed.put(endpoint_slice("web", ["10.0.0.1"]))
    pending = followed.tracker.pending()
    changed = _triggered("web", ["10.0.0.2"])
    followed.put(changed)
    followed.tracker.note_trigger(changed, since_unix_s=0.0)
    followed.tracker.commit(pending)

    assert followed.tracker.pending().trigger_times_s == (TRIGGER_S,)


def test_trigger_times_are_bounded_while_nothing_can_be_written(followed: Followed) -> None:
    """A kernel that refuses for days costs no memory."""
    for number in range(200):
        changed = _triggered("web", [f"10.0.0.{number}"])
        followed.put(changed)
        followed.tracker.note_trigger(changed, since_unix_s=0.0)

    assert len(followed.tracker.pending().trigger_times_s) == 20


def test_touched_service_is_written_again_though_it_means_the_same(followed: Followed) -> None:
    """Whoever lost rules can ask for them."""
    followed.tracker.touch([WEB], now_s=3.0)

    assert (followed.dirty(), followed.tracker.dirty_count) == ({WEB: ["10.244.1.2:80"]}, 1)
