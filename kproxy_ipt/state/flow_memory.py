"""
What a long-running process knows about entries between two clean-ups of connection tracking.

Services come in as they change. What goes out is the table for the next clean-up: the entries whose endpoints changed
since the last one that succeeded, and those that are entries no more. As long as none succeeds, the table only grows,
so no failure of a sync or of a clean-up loses anything; where no Service of the wanted protocols changed, it is empty
and nothing has to be listed.

The effort is proportional to what changed. Only Services with a port of a wanted protocol are kept.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kproxy_ipt.state.flows import EndpointAddress, Entry, EntryOptions, FlowTable, union_by_entry
from kproxy_ipt.state.tracker import ServiceName, States

_Claims: TypeAlias = Mapping[Entry, frozenset[EndpointAddress]]
MAX_FORMER = 10_000
"""Former entries that are remembered at most, the newest: where no clean-up ever succeeds, memory must not grow."""


class FlowMemory:
    """
    The entries of one family and what is still to be cleaned.

    The order of use: `update` after a sync that the kernel took, `pending` for the clean-up, `reconciled` with the same
    table after one that succeeded.
    """

    def __init__(self, protocols: Iterable[str] = ("udp",)) -> None:
        """Know nothing; other protocols than *protocols* (`udp`, `sctp`) are ignored."""
        self._protocols = frozenset(protocols)
        self._options = EntryOptions()
        self._states: dict[ServiceName, States] = {}
        self._claims: dict[ServiceName, _Claims] = {}
        self._claimants: dict[Entry, dict[ServiceName, frozenset[EndpointAddress]]] = {}
        self._changed: dict[Entry, None] = {}
        self._former: dict[Entry, None] = {}

    def set_options(self, options: EntryOptions) -> None:
        """Set which addresses answer; with new ones every entry is looked at again."""
        if options == self._options:
            return
        self._options = options
        for name, states in self._states.items():
            self._claim(name, states)
        self.require_all()

    def update(self, changes: Mapping[ServiceName, States]) -> None:
        """Take in what Services mean now; an empty tuple means that there is nothing to serve."""
        for name, states in changes.items():
            wanted = tuple(state for state in states if state.service_port.protocol in self._protocols)
            if wanted == self._states.get(name, ()):
                continue
            if wanted:
                self._states[name] = wanted
            else:
                del self._states[name]
            self._claim(name, wanted)

    def remember_former(self, entries: Iterable[Entry]) -> None:
        """Take in what may have been entries before this process, as removed rules tell."""
        for entry in entries:
            if entry.protocol in self._protocols and entry not in self._claimants:
                self._former[entry] = None
        self._bound_former()

    def require_all(self) -> None:
        """Let the next clean-up look at every entry, changed or not."""
        self._changed.update(dict.fromkeys(self._claimants))

    def pending(self) -> FlowTable:
        """What the next clean-up has to look at; `is_empty` says that there is nothing to do."""
        allowed = {entry: self._allowed(entry) for entry in self._changed}
        return FlowTable(allowed=allowed, former=frozenset(self._former), options=self._options)

    def reconciled(self, table: FlowTable) -> None:
        """Forget what was cleaned by *table*, but for what changed again since."""
        for entry, endpoints in table.allowed.items():
            if entry in self._changed and self._allowed(entry) == endpoints:
                del self._changed[entry]
        for entry in table.former:
            self._former.pop(entry, None)

    def _allowed(self, entry: Entry) -> frozenset[EndpointAddress]:
        return frozenset[EndpointAddress]().union(*self._claimants[entry].values())

    def _claim(self, name: ServiceName, states: States) -> None:
        old = self._claims.pop(name, {})
        new = union_by_entry(states, self._options)
        for entry in old.keys() - new.keys():
            self._release(entry, name)
        for entry, endpoints in new.items():
            if old.get(entry) != endpoints:
                self._claimants.setdefault(entry, {})[name] = endpoints
                self._changed[entry] = None
                self._former.pop(entry, None)
        if new:
            self._claims[name] = new
        self._bound_former()

    def _release(self, entry: Entry, name: ServiceName) -> None:
        claimants = self._claimants[entry]
        del claimants[name]
        if claimants:
            self._changed[entry] = None
            return
        del self._claimants[entry]
        self._changed.pop(entry, None)
        self._former[entry] = None

    def _bound_former(self) -> None:
        for entry in list(self._former)[: max(0, len(self._former) - MAX_FORMER)]:
            del self._former[entry]
