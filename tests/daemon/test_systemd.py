"""What systemd hears of the daemon."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.daemon.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """`NOTIFY_SOCKET` in both of its forms."""
    return str(tmp_path / "notify") if request.param == "path" else f"@kproxy-ipt-test-{os.getpid()}"


@pytest.fixture
def supervisor(address: str) -> Iterator[socket.socket]:
    """The socket that systemd would read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address.replace("@", "\0"))
        channel.settimeout(60)
        yield channel


def test_each_message_is_one_datagram(supervisor: socket.socket, address: str) -> None:
    """The words are those of sd_notify."""
    notifier = Notifier({"NOTIFY_SOCKET": address}, clock=lambda: 12.5)
    notifier.ready("10 Services")
    notifier.reloading()
    notifier.status("two\nlines")
    notifier.stopping()

    assert [supervisor.recv(1000).decode() for _ in range(4)] == [
        "READY=1\nSTATUS=10 Services",
        "RELOADING=1\nMONOTONIC_USEC=12500000",
        "STATUS=two lines",
        "STOPPING=1",
    ]


def test_environment_of_the_process_counts(
    supervisor: socket.socket, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the settings are those that systemd gave us."""
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    Notifier().ready()

    assert supervisor.recv(1000) == b"READY=1"


def test_watchdog_is_fed_at_half_of_its_time(supervisor: socket.socket, address: str) -> None:
    """The interval is in seconds; the message is sent only where a watchdog waits."""
    watched = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "42"}
    notifier = Notifier(watched, process_id=42)
    Notifier({"NOTIFY_SOCKET": address}).alive()
    notifier.alive()

    assert notifier.watchdog_interval_s == 1.5
    assert supervisor.recv(1000) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"},
    ],
)
def test_no_watchdog_without_valid_settings_for_this_process(settings: dict[str, str]) -> None:
    """Settings that are meant for another process, or are none, turn nothing on."""
    notifier = Notifier({"NOTIFY_SOCKET": "/run/notify", **settings}, process_id=42)

    assert notifier.watchdog_interval_s is None


@pytest.mark.parametrize("settings", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}])
def test_nobody_is_told_without_socket(settings: dict[str, str]) -> None:
    """Outside systemd nothing happens, whatever else is set."""
    notifier = Notifier({**settings, "WATCHDOG_USEC": "3000000"})
    notifier.ready()
    notifier.alive()

    assert notifier.watchdog_interval_s is None


def test_supervisor_that_is_away_stops_nothing(tmp_path: Path) -> None:
    """No socket, and no exception either; once it is back, it is told."""
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    notifier.ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(5)
        notifier.stopping()

        assert channel.recv(1000) == b"STOPPING=1"


def test_supervisor_that_does_not_read_stops_nothing(supervisor: socket.socket, address: str) -> None:
    """A full queue costs messages, not the event loop."""
    notifier = Notifier({"NOTIFY_SOCKET": address})
    for number in range(2000):
        notifier.status(f"{number} {'x' * 500}")

    assert supervisor.recv(1000).startswith(b"STATUS=0 x")
