"""
Whether this node's rules are up to date: the one judgement behind `/healthz`, `/livez` and the health check node ports.

A family is healthy while nothing waits to be written, or the oldest change that waits is younger than twice the sync
period. An idle proxy is healthy for ever; one whose writes fail is not, however often it tries.

As kube-proxy 1.36, with these differences, all of them towards the truth:

- A family waits from the start of the process until its first sync succeeds. With kube-proxy a first sync that fails,
  or never comes, leaves the node unprogrammed and healthy.
- A change that arrives while a sync runs still waits when that sync ends: the sync did not see it.
- A sync that fails leaves a change waiting even if nothing was requested: something is not as it should be.
- `lastUpdated` of a family is its last success; before the first one it is the zero time, not the start of the loop.

Decided against: letting a silent API server make a node unhealthy. Rules keep working without it, and a balancer that
asks `/healthz` would drop every node of the cluster at once, turning an outage of the control plane into one of all
services. How long the API has been silent is told by metrics and by `/healthz?verbose` (`api_status.py`), where it
costs nothing.

Everything here is called on the event loop; nothing waits. Two clocks: ages come from the monotonic one, since the
other may jump; times that people read come from the wall clock.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.objects.model import Node

AUTOSCALER_TAINT = "ToBeDeletedByClusterAutoscaler"
_NANOSECONDS = 10**9


class FamilyHealth(msgspec.Struct, frozen=True, kw_only=True):
    """
    The state of one family at one moment.

    Attributes:
        healthy: Whether its oldest unwritten change is young enough.
        reported: Whether anything was requested or done since the start.
        oldest_unwritten_s: Age of the oldest change that is not in the kernel; None where there is none.
        last_success_ns: Wall clock; None: no sync succeeded yet. The same for the other two.
        last_queued_ns: When a sync was last asked for.
        last_failure_ns: When a sync last failed.
        last_error: Its text, "" where none failed.
        set_aside: Services that the kernel refuses; they make nobody unhealthy.
    """

    healthy: bool
    reported: bool
    oldest_unwritten_s: float | None
    last_success_ns: int | None
    last_queued_ns: int | None
    last_failure_ns: int | None
    last_error: str
    set_aside: tuple[Refusal, ...] = ()


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """
    The state of all families at one moment, in the order of *families*.

    *limit_s* is the age that is too old, *now_s* the monotonic time.
    """

    now_ns: int
    now_s: float = 0.0
    healthy: bool
    node_eligible: bool
    limit_s: float
    families: Mapping[Family, FamilyHealth]


class ProxyHealth:
    """
    Collects what happens to changes, and judges.

    Args:
        families: Those that are served; each is judged from now on.
        sync_period_s: `iptables.syncPeriod`; the limit is twice that.
        clock: Monotonic seconds.
        wall_clock_ns: Nanoseconds since 1970.
    """

    def __init__(
        self,
        families: Iterable[Family],
        *,
        sync_period_s: float,
        clock: Callable[[], float],
        wall_clock_ns: Callable[[], int],
    ) -> None:
        self.limit_s = 2 * sync_period_s
        self._clock = clock
        self._wall_clock_ns = wall_clock_ns
        self._records = {family: _Record(waiting_since=clock()) for family in families}
        self._node: Node | None = None

    def leave_out(self, family: Family) -> None:
        """A family turned out not to be served here; it is not judged any more."""
        self._records.pop(family, None)

    def has_synced(self) -> bool:
        """Whether every family has had a sync that succeeded."""
        return all(record.last_success_ns is not None for record in self._records.values())

    def queued(self, family: Family) -> None:
        """A change of *family* waits to be written; a sync is asked for."""
        record, now = self._records[family], self._clock()
        record.last_queued_ns = self._wall_clock_ns()
        if record.waiting_since is None:
            record.waiting_since = now
        if record.sync_began is not None and record.queued_during_sync is None:
            record.queued_during_sync = now

    def sync_began(self, family: Family) -> None:
        """A sync took up everything that was queued until now."""
        record = self._records[family]
        record.sync_began = self._clock()
        record.queued_during_sync = None

    def updated(self, family: Family) -> None:
        """The sync succeeded: what it had taken up is in the kernel, or was there already."""
        record = self._records[family]
        record.last_success_ns = self._wall_clock_ns()
        record.waiting_since = record.queued_during_sync
        record.sync_began = record.queued_during_sync = None

    def failed(self, family: Family, error: str) -> None:
        """The sync failed: what it had taken up still waits, as old as it is."""
        record = self._records[family]
        record.last_failure_ns, record.last_error = self._wall_clock_ns(), error
        began = self._clock() if record.sync_began is None else record.sync_began
        record.waiting_since = began if record.waiting_since is None else min(record.waiting_since, began)
        record.sync_began = record.queued_during_sync = None

    def set_aside(self, family: Family, refusals: tuple[Refusal, ...]) -> None:
        """These Services are set aside, and no others: told to who asks, no reason to be unhealthy."""
        self._records[family].set_aside = refusals

    def node_seen(self, node: Node | None) -> None:
        """The own Node was delivered; None: it was removed, and the last one seen keeps counting."""
        if node is not None:
            self._node = node

    def oldest_unwritten_s(self) -> Mapping[Family, float]:
        """Age of the oldest unwritten change of each family, 0 where nothing waits."""
        now = self._clock()
        return {family: record.age_s(now) or 0.0 for family, record in self._records.items()}

    def is_healthy(self) -> bool:
        """Whether every family is healthy, whatever the Node says."""
        return self.judge().healthy

    def judge(self) -> Health:
        """The state now."""
        now = self._clock()
        families = {family: record.health(now, self.limit_s) for family, record in self._records.items()}
        return Health(
            now_ns=self._wall_clock_ns(),
            now_s=now,
            healthy=all(health.healthy for health in families.values()),
            node_eligible=is_eligible(self._node),
            limit_s=self.limit_s,
            families=families,
        )


def is_eligible(node: Node | None) -> bool:
    """
    Whether a balancer should send to the node.

    Args:
        node: As last seen; None: never seen, which is not eligible. Cordoned and NotReady nodes are.
    """
    if node is None or node.metadata.deletion_timestamp is not None:
        return False
    taints = (node.spec.taints if node.spec else None) or ()
    return all(taint.key != AUTOSCALER_TAINT for taint in taints)


def health_document(health: Health, *, is_ok: bool, with_node: bool) -> dict[str, object]:
    """
    The body of `/healthz` and `/livez` as kube-proxy has it, keys in its order.

    Args:
        health: What was judged.
        is_ok: Whether the answer is 200: `lastUpdated` is then the time of asking, the latest success otherwise.
        with_node: Whether `nodeEligible` belongs in it.
    """
    updates = [family.last_success_ns for family in health.families.values() if family.last_success_ns is not None]
    last_updated_ns = health.now_ns if is_ok else max(updates, default=None)
    document: dict[str, object] = {"lastUpdated": rfc3339(last_updated_ns), "currentTime": rfc3339(health.now_ns)}
    if with_node:
        document["nodeEligible"] = health.node_eligible
    document["healthy"] = health.healthy
    status = {
        family.api_name: {"lastUpdated": rfc3339(one.last_success_ns), "healthy": one.healthy}
        for family, one in health.families.items()
        if one.reported or not one.healthy
    }
    return {**document, "status": status} if status else document


def family_details(health: Health) -> dict[str, object]:
    """What `?verbose` adds, by family: times are null where there is none."""
    return {
        family.api_name: {
            "lastSuccess": _time_or_null(one.last_success_ns),
            "lastQueued": _time_or_null(one.last_queued_ns),
            "lastFailure": _time_or_null(one.last_failure_ns),
            "lastError": one.last_error or None,
            "oldestUnwrittenSeconds": one.oldest_unwritten_s,
            "limitSeconds": health.limit_s,
            **_set_aside_details(one.set_aside, health.now_s),
        }
        for family, one in health.families.items()
    }


def _set_aside_details(refusals: tuple[Refusal, ...], now_s: float) -> dict[str, object]:
    details = [
        {
            "service": one.text,
            "reason": one.reason,
            "rules": one.rules,
            "failures": one.failures,
            "retryInSeconds": round(max(one.due_s - now_s, 0.0), 1),
        }
        for one in refusals
    ]
    return {"setAside": details} if details else {}


def rfc3339(time_ns: int | None) -> str:
    """A time in UTC as Go writes it: as many digits after the second as are needed; None is Go's zero time."""
    if time_ns is None:
        return "0001-01-01T00:00:00Z"
    seconds, fraction = divmod(time_ns, _NANOSECONDS)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{digits}Z"


def _time_or_null(time_ns: int | None) -> str | None:
    return None if time_ns is None else rfc3339(time_ns)


class _Record(msgspec.Struct, kw_only=True):
    """What is remembered of one family; `waiting_since`, `sync_began`, `queued_during_sync` are monotonic."""

    waiting_since: float | None
    sync_began: float | None = None
    queued_during_sync: float | None = None
    last_success_ns: int | None = None
    last_queued_ns: int | None = None
    last_failure_ns: int | None = None
    last_error: str = ""
    set_aside: tuple[Refusal, ...] = ()

    def age_s(self, now: float) -> float | None:
        return None if self.waiting_since is None else max(now - self.waiting_since, 0.0)

    def health(self, now: float, limit_s: float) -> FamilyHealth:
        age_s = self.age_s(now)
        return FamilyHealth(
            healthy=age_s is None or age_s < limit_s,
            reported=any(
                time is not None for time in (self.last_success_ns, self.last_queued_ns, self.last_failure_ns)
            ),
            oldest_unwritten_s=age_s,
            last_success_ns=self.last_success_ns,
            last_queued_ns=self.last_queued_ns,
            last_failure_ns=self.last_failure_ns,
            last_error=self.last_error,
            set_aside=self.set_aside,
        )
