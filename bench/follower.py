"""What the daemon does for one family, without its loop: lines of watches become rules in the kernel."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from bench.floor import cluster_config
from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.family import FamilySync, ProcessNote, SyncOutcome, SyncRequest
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.machine import Machine, Target, machine_facts, open_machine, with_runner
from kproxy_ipt.kernel.command import DEFAULT_TIMEOUT_S, Completed, Running, SubprocessRunner
from kproxy_ipt.objects.events import ApiObject, Gone, Kind, Listed, Put
from kproxy_ipt.plan.flows import entry_options
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.sources.watch_stream import Changed, read_line
from kproxy_ipt.state.model import NodeFacts
from kproxy_ipt.state.tracker import ObjectStore, StateTracker
from kproxy_ipt.testing.big_cluster import watch_lines

NODE = "node-0"

Line = tuple[Kind, bytes]
"""One line of the watch of a kind."""


class Recorder:
    """A `Runner` that remembers what the last restore program was fed."""

    def __init__(self) -> None:
        self._runner = SubprocessRunner()
        self.restore_input = ""

    def run(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Completed:
        """See `Runner.run`."""
        if stdin:
            self.restore_input = stdin
        return self._runner.run(arguments, stdin=stdin, timeout_s=timeout_s)

    def feed(
        self, arguments: Sequence[str], pieces: Iterable[str], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        """See `Runner.feed`."""
        kept: list[str] = []

        def keeping() -> Iterator[str]:
            for piece in pieces:
                kept.append(piece)
                yield piece

        completed = self._runner.feed(arguments, keeping(), timeout_s=timeout_s)
        self.restore_input = "".join(kept)
        return completed

    def start(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Running:
        """See `Runner.start`."""
        return self._runner.start(arguments, stdin=stdin, timeout_s=timeout_s)


class Written(msgspec.Struct, frozen=True):
    """A sync and what the restore program was fed."""

    outcome: SyncOutcome
    text: str


class Follower:
    """Objects, what they mean, and the kernel that is kept in step with them; in the namespace of the thread."""

    def __init__(self, machine: Machine, dispatch: str) -> None:
        self.recorder = Recorder()
        machine = with_runner(machine, self.recorder)
        self._store = ObjectStore()
        self._tracker = StateTracker(Family.IPV4, NODE)
        facts = machine_facts(machine, ensure=True)
        config = cluster_config(dispatch)
        self._options = rule_options(config, NodeFacts(name=NODE), facts, Family.IPV4, endpoint_count=0)
        self._entries = entry_options(self._options, facts.interface_addresses)
        self.iptables = machine.iptables[Family.IPV4]
        self._sync = FamilySync(machine, Family.IPV4, SilentLog(), ProcessNote())

    def take_list(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take in all objects of a kind."""
        self._tracker.refresh(self._store, self._store.apply(Listed(kind, tuple(objects))), now_s=0.0)

    def take(self, lines: Iterable[Line]) -> None:
        """Take in lines of watches."""
        for kind, line in lines:
            self._tracker.refresh(self._store, self._store.apply(decoded(kind, line)), now_s=0.0)

    def write(self) -> Written:
        """Sync, as the daemon does; a failure ends the benchmark."""
        self.recorder.restore_input = ""
        pending = self._tracker.pending()
        request = SyncRequest(changes=pending.changes, options=self._options, entries=self._entries)
        outcome = self._sync.run(request, set())
        if outcome.error is not None:
            raise outcome.error
        self._tracker.commit(pending)
        return Written(outcome, self.recorder.restore_input)


def follower(backend: str, dispatch: str) -> Follower:
    """A follower that knows nothing yet, in the namespace of the calling thread."""
    wish = msgspec.convert({"backend": backend, "families": ["ipv4"], "lock_wait_s": 60}, type=Target)
    return Follower(open_machine(wish), dispatch)


def decoded(kind: Kind, line: bytes) -> Put | Gone:
    """The event of one line, which is known to be good."""
    said = read_line(kind, line, "bench")
    if not isinstance(said, Changed):
        raise TypeError(f"no event: {said}")
    return said.event


def listed(kind: Kind, services: int) -> tuple[ApiObject, ...]:
    """All objects of a kind in a cluster, decoded line by line as a streaming list is."""
    events = (decoded(kind, line) for line in watch_lines(kind, services))
    return tuple(event.object for event in events if isinstance(event, Put))
