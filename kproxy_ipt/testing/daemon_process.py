"""
`kproxy-ipt run` as a real process: started, listened to, asked over HTTP, and ended by a signal.

The daemon writes the rules of a network namespace and serves its ports there, while the process itself stays outside:
so it can watch a folder as well as an API server on the loopback of the test. Whatever one waits for here is looked for
every few milliseconds and has a limit, so a test that uses it neither sleeps nor hangs.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Self

from prometheus_client.parser import text_string_to_metric_families

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.lab import NODE_NAME
from kproxy_ipt.testing.probe import Probed
from kproxy_ipt.testing.probe_netns import probe_netns
from kproxy_ipt.testing.topology import CLUSTER_CIDRS

HEALTH_PORT = 10256
METRICS_PORT = 10249
PATIENCE_S = 60.0
"""How long anything may take on a machine that is busy with other things; only what never happens takes as long."""

_POLL_S = 0.01
_LAST_MOMENT_S = 3.0
LogLine = Mapping[str, object]


def wait_until(
    condition: Callable[[], object], what: str, *, timeout_s: float = PATIENCE_S, poll_s: float = _POLL_S
) -> float:
    """
    Wait until *condition* is true, which is looked at every *poll_s*.

    Returns:
        Seconds that it took.

    Raises:
        TimeoutError: It did not become true in time; the text names *what*.
    """
    started_s = time.monotonic()
    while not condition():
        if time.monotonic() - started_s > timeout_s:
            raise TimeoutError(f"not within {timeout_s} s: {what}")
        time.sleep(poll_s)
    return time.monotonic() - started_s


def kproxy_ipt_program() -> str:
    """The program of the environment that the tests run in."""
    return str(Path(sys.executable).with_name("kproxy-ipt"))


class DaemonProcess:
    """
    One daemon; a context manager that starts it and leaves no process behind.

    It can be stopped and started again; log lines of all its lives are kept.

    Attributes:
        command: Program and arguments.
    """

    def __init__(
        self,
        netns: str,
        *arguments: str,
        node_name: str = NODE_NAME,
        environment: Mapping[str, str] | None = None,
        shims: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """
        Describe a daemon; nothing is started yet.

        Args:
            netns: Name of the namespace whose rules it writes.
            arguments: Further arguments of `run`: `--from FOLDER` or `--master URL`, and any flag.
            node_name: Value of `--hostname-override`; "" leaves the option out.
            environment: Added to that of the test.
            shims: Folder that is put first in `PATH`.
            prefix: Program with arguments that becomes the daemon by `exec`, as `unshare --mount`.
        """
        named = ["--hostname-override", node_name] if node_name else []
        self.command = [*prefix, kproxy_ipt_program(), "run", "--netns", netns, *named, *arguments]
        self._netns = netns
        path = os.environ["PATH"] if shims is None else f"{shims}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self._lives = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it as a service manager does if it still runs: it is told to, and killed if it does not in a moment."""
        if self._process is None:
            return
        try:
            self.stop(timeout_s=_LAST_MOMENT_S)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGKILL)

    @property
    def process_id(self) -> int:
        """Of the life that runs; RuntimeError if there is none."""
        return self._running().pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines of standard error so far."""
        return tuple(self._lines)

    def start(self) -> None:
        """Start it; returns at once."""
        process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        if process.stderr is None:
            raise RuntimeError("no pipe")
        self._process = process
        self._lives += 1
        self._reader = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._reader.start()

    def stop(self, number: signal.Signals = signal.SIGTERM, *, timeout_s: float = PATIENCE_S) -> int:
        """
        Send a signal and wait for the end.

        Returns:
            The exit code; minus the number of the signal that ended it.
        """
        process = self._running()
        if process.poll() is None:
            process.send_signal(number)
        code = process.wait(timeout_s)
        if self._reader is not None:
            self._reader.join(timeout_s)
        self._process = None
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal that does not end it."""
        self._running().send_signal(number)

    def log(self, event: str, **fields: object) -> list[LogLine]:
        """The log lines of that event so far, with these values."""
        found = [_decoded(line) for line in self.lines]
        return [line for line in found if line.get("event") == event and fields.items() <= line.items()]

    def wait_for_log(self, event: str, *, count: int = 1, timeout_s: float = PATIENCE_S, **fields: object) -> LogLine:
        """
        Wait for the log line number *count* of that event.

        Raises:
            TimeoutError: It did not come; the text holds the last lines.
        """
        try:
            wait_until(lambda: self._has(event, count, fields), f"log line {event} {fields}", timeout_s=timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n" + "\n".join(self.lines[-30:])) from None
        return self.log(event, **fields)[count - 1]

    def wait_in_step(self, *, timeout_s: float = PATIENCE_S) -> LogLine:
        """Wait until the life that runs has synced once in each family."""
        return self.wait_for_log("in step", count=self._lives, timeout_s=timeout_s)

    def get(self, path: str, port: int = HEALTH_PORT) -> Probed:
        """
        Ask one of its servers on the loopback of the namespace.

        Raises:
            ConnectionRefusedError: Nobody listens.
        """
        return probe_netns(self._netns, "127.0.0.1", port, path)

    def health(self, family: Family = Family.IPV4) -> "HealthAnswer":
        """What `/healthz` says now, with the age that it judges by."""
        answer = self.get("/healthz?verbose")
        told = json.loads(answer.body)["families"][family.api_name]
        return HealthAnswer(answer.status, told["oldestUnwrittenSeconds"] or 0.0, told["limitSeconds"])

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name with these labels; 0 where there are none."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics", METRICS_PORT).body.decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def wait_for_metric(self, name: str, least: float, *, timeout_s: float = PATIENCE_S, **labels: str) -> float:
        """Wait until a metric is at least *least*; returns seconds."""
        return wait_until(
            lambda: self.metric(name, **labels) >= least, f"{name} {labels} >= {least}", timeout_s=timeout_s
        )

    def _has(self, event: str, count: int, fields: Mapping[str, object]) -> bool:
        process = self._process
        if len(self.log(event, **fields)) >= count:
            return True
        if process is not None and process.poll() is not None and not self._is_reading():
            if len(self.log(event, **fields)) >= count:
                return True
            raise RuntimeError(f"the daemon ended with {process.returncode}:\n" + "\n".join(self.lines[-30:]))
        return False

    def _is_reading(self) -> bool:
        return self._reader is not None and self._reader.is_alive()

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise RuntimeError("the daemon does not run")
        return self._process

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self._lines.append(line.rstrip("\n"))


class HealthAnswer(NamedTuple):
    """
    One answer of `/healthz?verbose` of a daemon, one family alone of which is in trouble.

    Attributes:
        status: 200 or 503.
        oldest_s: Age of the oldest change of the family that is not written; 0 if there is none.
        limit_s: The age that is too old.
    """

    status: int
    oldest_s: float
    limit_s: float

    @property
    def is_right(self) -> bool:
        """Whether the status is that of the age."""
        return (self.status == 503) == (self.oldest_s > self.limit_s)


def _decoded(line: str) -> dict[str, object]:
    """A line of the JSON log; what is none becomes `{"text": line}`."""
    try:
        found = json.loads(line)
    except ValueError:
        return {"text": line}
    return found if isinstance(found, dict) else {"text": line}


def run_to_end(*arguments: str, stdin: str = "", timeout_s: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
    """Run `kproxy-ipt run ARGUMENTS` where it ends by itself, as `--cleanup` does."""
    command: Sequence[str] = [kproxy_ipt_program(), "run", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)


def lab_arguments(source: Path | str, backend: str, *, family: Family | None = Family.IPV4) -> tuple[str, ...]:
    """
    Arguments of a daemon that follows each change at once, for pods of the lab.

    Args:
        source: A file or folder, or the URL of an API server.
        backend: `nft` or `legacy`.
        family: Only this one; None serves both.
    """
    where = ("--from", str(source)) if isinstance(source, Path) else ("--master", source)
    only = () if family is None else ("--family", family.value)
    cidrs = ",".join(CLUSTER_CIDRS.values())
    return (*where, "--backend", backend, *only, "--cluster-cidr", cidrs, "--iptables-min-sync-period", "0s")
