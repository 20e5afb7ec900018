"""The status server of a daemon: off unless asked for, and said aloud where others can reach it."""

from collections.abc import Mapping

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.family import SyncOutcome, SyncRequest
from kproxy_ipt.daemon.log import SilentLog
from kproxy_ipt.daemon.status.server import StatusServer, for_pages
from kproxy_ipt.testing.fake_machine import FakeMachine
from kproxy_ipt.testing.watched_daemon import WatchedDaemon


class Told(SilentLog):
    """Keeps warnings."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, Mapping[str, object]]] = []

    def warning(self, event: str, **fields: object) -> None:
        """Keep it."""
        self.warnings.append((event, fields))


def _server(address: str) -> StatusServer:
    return StatusServer(address, netns=None, unix_s=lambda: 5.0)


def _note(server: StatusServer) -> None:
    server.on_synced(Family.IPV4, SyncRequest(changes={("default", "web"): ()}), SyncOutcome(full=True))


def test_without_an_address_there_is_nothing() -> None:
    """No server, no memory of syncs."""
    server = _server("")
    _note(server)

    assert server.servers(WatchedDaemon().watched, SilentLog()) == ()
    assert server.history.syncs == ()
    server.close()


@pytest.mark.parametrize(("address", "warnings"), [("127.0.0.1:10258", 0), ("0.0.0.0:10258", 1), ("192.0.2.1:80", 1)])
def test_an_address_that_others_can_reach_is_a_warning(address: str, warnings: int) -> None:
    """There is no password."""
    server, log = _server(address), Told()
    _note(server)
    (served,) = server.servers(WatchedDaemon().watched, log)

    assert (served.name, served.address) == ("status", address)
    assert [event for event, _ in log.warnings] == ["status page"] * warnings
    assert len(server.history.syncs) == 1
    server.close()


def test_pages_give_programs_up_sooner() -> None:
    """One that hangs holds up other pages and the end of the daemon."""
    slow = msgspec.structs.replace(FakeMachine().opened(), program_timeout_s=300.0)

    assert for_pages(slow).program_timeout_s == 20.0
    assert for_pages(slow).iptables.keys() == slow.iptables.keys()
