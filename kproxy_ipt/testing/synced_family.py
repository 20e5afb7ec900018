"""
One family that is kept in step, without a loop around it.

`TrackedFamily` writes what a tracker says, `SyncedFamily` follows objects, `FamilyInMemory` does so on a machine in
memory. `looped_family.py` puts the loop of a family around it, `watched_daemon.py` the status page of a daemon.
"""

from collections.abc import Iterable

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.daemon.family import FamilySync, ProcessNote, SyncOutcome, SyncRequest
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Machine
from kproxy_ipt.kernel.backend import Backend
from kproxy_ipt.objects.events import Gone, Kind, Put
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.tracker import ObjectStore, ServiceName, StateTracker
from kproxy_ipt.testing.clock import ManualClock
from kproxy_ipt.testing.desired import ApiObject, put_of
from kproxy_ipt.testing.fake_machine import FakeMachine

CONFIG = Config(iptables=IptablesConfig(localhost_node_ports=False))
"""Sets no kernel setting of the machine that a test runs on."""

_NO_FACTS = MachineFacts()


class TrackedFamily:
    """
    What a tracker says, and the programs that write it.

    Attributes:
        sync_of_family: What the daemon runs in its kernel thread.
        tracker: What changed and is not yet in the kernel.
    """

    def __init__(self, machine: Machine, tracker: StateTracker) -> None:
        """Nothing is written yet; `set_options` comes first."""
        self.sync_of_family = FamilySync(machine, tracker.family, SilentLog(), ProcessNote())
        self.tracker = tracker

    def set_options(self, config: Config, facts: MachineFacts = _NO_FACTS, node: NodeFacts | None = None) -> None:
        """Let rules depend on this from the next sync on; by default on the node of the tracker."""
        node = node or NodeFacts(name=self.tracker.node_name)
        self.options = rule_options(config, node, facts, self.tracker.family, endpoint_count=0)
        self.entries = entry_options(self.options, facts.interface_addresses)

    def request(self, reason: str = "", *, retry: Iterable[ServiceName] = ()) -> SyncRequest:
        """What the daemon would ask for now."""
        return SyncRequest(
            changes=self.tracker.pending().changes,
            options=self.options,
            entries=self.entries,
            reason=reason,
            retry=frozenset(retry),
        )

    def run(self, request: SyncRequest) -> SyncOutcome:
        """Sync once, and commit what succeeded."""
        pending = self.tracker.pending()
        outcome = self.sync_of_family.run(request, set())
        if outcome.error is None:
            self.tracker.commit(pending)
        return outcome

    def sync(self, reason: str = "", *, retry: Iterable[ServiceName] = ()) -> SyncOutcome:
        """Write what changed; with a reason everything."""
        return self.run(self.request(reason, retry=retry))


class SyncedFamily(TrackedFamily):
    """
    Objects, and the rules that they ask for.

    Attributes:
        clock: Stands; says when objects changed.
    """

    def __init__(
        self,
        machine: Machine,
        family: Family,
        *objects: ApiObject,
        config: Config = CONFIG,
        facts: MachineFacts = _NO_FACTS,
    ) -> None:
        """Know *objects*; nothing is written yet. Real programs need the *facts* of `machine_facts`."""
        super().__init__(machine, StateTracker(family, "node1"))
        self.clock, self._store = ManualClock(), ObjectStore()
        self.set_options(config, facts)
        self.put(*objects)

    def put(self, *objects: ApiObject) -> None:
        """Take in objects."""
        for one in objects:
            self._take(put_of(one))

    def remove(self, kind: Kind, name: str) -> None:
        """Take in that an object of the namespace `default` is gone."""
        self._take(Gone(kind, "default", name))

    def _take(self, event: Put | Gone) -> None:
        self.tracker.refresh(self._store, self._store.apply(event), now_s=self.clock())


class FamilyInMemory(SyncedFamily):
    """
    IPv4 on a machine in memory.

    Attributes:
        machine: Whose tables are written.
    """

    def __init__(self, *objects: ApiObject, machine: FakeMachine | None = None, backend: Backend = Backend.NFT) -> None:
        """Know *objects*; *machine* is one whose tables others have written, or a new one."""
        self.machine = machine or FakeMachine()
        super().__init__(self.machine.opened(backend), Family.IPV4, *objects)

    @property
    def text(self) -> str:
        """What the kernel has."""
        return self.machine.kernels[Family.IPV4].save()
