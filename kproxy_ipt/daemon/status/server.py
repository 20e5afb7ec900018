"""
The status server of a daemon, or none: it is off unless an address is configured.

Everything that only the pages need (templates, graphs) is imported when there are pages, so that a daemon without them
is as small as before.
"""

from collections.abc import Callable

import msgspec

from kproxy_ipt.config.host_port import split_host_port
from kproxy_ipt.daemon.family_loop import OnSynced
from kproxy_ipt.daemon.http import Server
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Machine, with_runner
from kproxy_ipt.daemon.status.desk import Desk
from kproxy_ipt.daemon.status.guard import is_open
from kproxy_ipt.daemon.status.history import History
from kproxy_ipt.daemon.status.scene import Watched
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.stats.model import TrafficSource

_PATIENCE_S = 20.0
"""How long a page waits for a program of iptables; others wait for the page meanwhile, and so does the end."""


def for_pages(machine: Machine) -> Machine:
    """*machine* with programs of its own for pages, which are given up sooner than those of syncs."""
    hurried = msgspec.structs.replace(machine, program_timeout_s=min(machine.program_timeout_s, _PATIENCE_S))
    return with_runner(hurried, SubprocessRunner())


class StatusServer:
    """What belongs to the status page of one daemon; `close` it."""

    def __init__(self, address: str, *, netns: str | None, unix_s: Callable[[], float]) -> None:
        """
        Remember syncs from now on, if there are to be pages.

        Args:
            address: `host:port`, "" for no pages.
            netns: Name or path of the network namespace of the rules.
            unix_s: The time.
        """
        self._address = address
        self._history = History(unix_s)
        self._desk = Desk(netns) if address else None
        self._close_pages: Callable[[], None] = lambda: None

    @property
    def history(self) -> History:
        """What pages tell about syncs; empty where there are none."""
        return self._history

    @property
    def on_synced(self) -> OnSynced:
        """To be called after each sync."""
        return self._history.note if self._address else lambda *_: None

    def servers(self, watched: Watched, log: Log, traffic: TrafficSource | None = None) -> tuple[Server, ...]:
        """
        The server, to be opened; none where there is no address.

        Args:
            watched: What pages show.
            log: Told if others than this machine may ask.
            traffic: Counts connections; None if nobody does.
        """
        if self._desk is None:
            return ()
        if is_open(self._address):
            log.warning("status page", address=self._address, open_to="everybody who reaches this address: no password")
        from kproxy_ipt.daemon.status.pages import StatusPages  # see above

        parts = split_host_port(self._address)
        pages = StatusPages(watched, self._desk, bound_host=parts.host if parts else "", traffic=traffic)
        self._close_pages = pages.close
        return (Server("status", self._address, pages.respond),)

    def close(self) -> None:
        """Finish the page that is made, drop the others."""
        self._close_pages()
        if self._desk is not None:
            self._desk.close()
