"""One family that is kept in step with objects, without a daemon around it: on real programs or on those in memory."""

from collections.abc import Iterable

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.family import FamilySync, ProcessNote, SyncOutcome, SyncRequest
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.objects.events import Gone, Kind, Put
from kproxy_ipt.objects.model import Service
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.tracker import ObjectStore, ServiceName, StateTracker
from kproxy_ipt.testing.desired import ApiObject

_CONFIG = Config(iptables=IptablesConfig(localhost_node_ports=False))
_NO_FACTS = MachineFacts()


class SyncedFamily:
    """
    Objects, and the rules that they ask for.

    Attributes:
        sync_of_family: What the daemon runs in its kernel thread.
        tracker: What changed and is not yet in the kernel.
    """

    def __init__(
        self,
        machine: Machine,
        family: Family,
        *objects: ApiObject,
        config: Config = _CONFIG,
        facts: MachineFacts = _NO_FACTS,
    ) -> None:
        """Know *objects*; nothing is written yet. Real programs need the *facts* of `machine_facts`."""
        self.sync_of_family = FamilySync(machine, family, SilentLog(), ProcessNote())
        self._store, self.tracker = ObjectStore(), StateTracker(family, "node1")
        self._options = rule_options(config, NodeFacts(name="node1"), facts, family, endpoint_count=0)
        self.put(*objects)

    def put(self, *objects: ApiObject) -> None:
        """Take in objects."""
        for one in objects:
            self._take(Put(Kind.SERVICES if isinstance(one, Service) else Kind.ENDPOINT_SLICES, one))

    def remove(self, kind: Kind, name: str) -> None:
        """Take in that an object of the namespace `default` is gone."""
        self._take(Gone(kind, "default", name))

    def _take(self, event: Put | Gone) -> None:
        self.tracker.refresh(self._store, self._store.apply(event), now_s=0.0)

    def sync(self, reason: str = "", *, retry: Iterable[ServiceName] = ()) -> SyncOutcome:
        """Sync once, and commit what succeeded."""
        pending = self.tracker.pending()
        request = SyncRequest(
            changes=pending.changes,
            options=self._options,
            entries=entry_options(self._options, ()),
            reason=reason,
            retry=frozenset(retry),
        )
        outcome = self.sync_of_family.run(request, set())
        if outcome.error is None:
            self.tracker.commit(pending)
        return outcome
