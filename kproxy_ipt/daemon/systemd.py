"""
Telling systemd how the daemon is doing: the protocol of sd_notify, by hand.

Nothing happens where nobody listens: without `NOTIFY_SOCKET` every method returns at once, and a message that cannot be
delivered is dropped, as no daemon should stop because its supervisor is away.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import os
import socket
import time
from collections.abc import Callable, Mapping

_MICROSECONDS = 1_000_000


class Notifier:
    """Sends messages to the socket that the environment names."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        process_id: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Take the settings.

        Args:
            environment: `NOTIFY_SOCKET` (a path, or `@name` for an abstract socket), `WATCHDOG_USEC`, `WATCHDOG_PID`;
                by default that of the process.
            process_id: Of the process that the watchdog must mean, by default our own.
            clock: CLOCK_MONOTONIC in seconds.
        """
        settings = os.environ if environment is None else environment
        self._address = _address(settings.get("NOTIFY_SOCKET", ""))
        self._clock = clock
        self._watchdog_s = _watchdog_s(settings, os.getpid() if process_id is None else process_id)

    @property
    def watchdog_interval_s(self) -> float | None:
        """
        Seconds between two calls of `alive`: half of what systemd allows, as it recommends.

        None if it does not watch us.
        """
        return None if self._address is None or self._watchdog_s is None else self._watchdog_s / 2

    def ready(self, status: str = "") -> None:
        """The start, or a reload, is done."""
        self._send("READY=1", *_status_lines(status))

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(self._clock() * _MICROSECONDS)}")

    def stopping(self, status: str = "") -> None:
        """The end begins."""
        self._send("STOPPING=1", *_status_lines(status))

    def status(self, text: str) -> None:
        """One line for people who ask `systemctl status`."""
        self._send(*_status_lines(text or " "))

    def alive(self) -> None:
        """The daemon works; to be said every `watchdog_interval_s` seconds, and only if it does."""
        if self.watchdog_interval_s is not None:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                # A supervisor that does not read must not stop the event loop.
                channel.setblocking(False)
                channel.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:
            return


def _address(text: str) -> str | bytes | None:
    if text.startswith("@"):
        return b"\0" + os.fsencode(text[1:])
    return text if text.startswith("/") else None


def _watchdog_s(settings: Mapping[str, str], process_id: int) -> float | None:
    """The time that systemd allows; None if there is none, or if it is for another process."""
    microseconds = settings.get("WATCHDOG_USEC", "")
    meant = settings.get("WATCHDOG_PID", "")
    if not (microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0):
        return None
    return int(microseconds) / _MICROSECONDS if meant in ("", str(process_id)) else None


def _status_lines(status: str) -> tuple[str, ...]:
    """A status may not hold line breaks: they would begin another message."""
    return (f"STATUS={' '.join(status.split())}",) if status else ()
