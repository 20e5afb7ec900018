"""
One node under faults: a real daemon, an API server that never rests, traffic, rules of others; and what a fault costs.

::

    with FaultLab("nft", tmp_path) as node:
        outcome = node.judge("restore fails", lambda: ..., bound_s=5.0)

A fault is a function that breaks something, makes changes meanwhile, and mends it again. `judge` then waits until the
kernel has what a fresh start would write, and counts what was lost on the way.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.events import Kind
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.churn import Churn
from kproxy_ipt.testing.daemon_process import PATIENCE_S, DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.damage import DamagedTables, foreign_lines, own_lines, saved_tables
from kproxy_ipt.testing.lab import NODE_NAME, Lab
from kproxy_ipt.testing.lab_objects import TARGET_PORT, balancer_ip, cluster_ip, endpoints, open_service
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.shims import Shims
from kproxy_ipt.testing.steady_traffic import SteadyConnections
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.testing.traffic import Outcome

_V4 = Family.IPV4
_MARK = "KPROXY_IPT_FAULT_LAB"
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
"""Mounts of the daemon are its own, so that a fault can change them."""
PROGRAM_TIMEOUT_S = 2.0
"""After this the daemon ends a program that hangs."""
_PAUSE_S = 0.05
_SPARE_DESCRIPTORS = 4
"""Connections that happen to be open."""


class FaultOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one fault cost.

    Attributes:
        fault: What it is called.
        took_s: From the moment when all was mended until the kernel had everything.
        bound_s: How long that may take.
        lost_updates: Lines in which kernel and fresh render still differ then.
        lost_foreign: Lines of others that differ from before.
        exchanges: New connections to a Service that nobody touched.
        lost_exchanges: How many of them got no answer, by what came instead; a
            timeout counts if a packet had to be sent again meanwhile.
        leaked: What is left that was not there before: processes, files, descriptors.
    """

    fault: str
    took_s: float
    bound_s: float
    lost_updates: int = 0
    lost_foreign: int = 0
    exchanges: int = 0
    lost_exchanges: Mapping[str, int] = msgspec.field(default_factory=dict)
    leaked: tuple[str, ...] = ()

    @property
    def is_harmless(self) -> bool:
        """Whether nothing was lost and all was in step in time."""
        return self._is_lossless and self.took_s <= self.bound_s

    @property
    def is_late_alone(self) -> bool:
        """Whether nothing was lost, and all was in step, but not in time."""
        return self._is_lossless and self.took_s > self.bound_s

    @property
    def _is_lossless(self) -> bool:
        return not (self.lost_updates or self.lost_foreign or self.lost_exchanges or self.leaked)


class FaultLab:
    """
    The node; a context manager.

    Attributes:
        backend: Where rules are.
        lab: The namespaces.
        server: The API server.
        churn: Changes its objects.
        shims: In front of the programs that save and restore.
        daemon: Follows the server.
        tables: To break; rules of others stand in them.
    """

    def __init__(
        self,
        backend: BackendWish,
        folder: Path,
        *,
        services: int = 30,
        seed: int = 1,
        prefix: tuple[str, ...] = OWN_MOUNTS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Describe the node; nothing is made yet.

        Args:
            backend: `nft` or `legacy`.
            folder: An empty one.
            services: How many change.
            seed: Of the changes.
            prefix: See `DaemonProcess`; a script finds the folder for temporary files in `TMPDIR`.
            environment: Of the daemon, added to that of the test.
        """
        self.backend: BackendWish = backend
        self.lab = Lab()
        self.server = ApiServer()
        self._stack = ExitStack()
        self._services, self._seed = services, seed
        self._mark = secrets.token_hex(8)
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.shims = Shims(folder / "shims")
        self.restore, self.save = f"iptables-{backend}-restore", f"iptables-{backend}-save"
        self.shims.install(self.restore, self.save)
        self._prefix = prefix
        self._environment = {_MARK: self._mark, "TMPDIR": str(self.temporary), **(environment or {})}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.lab)
            stack.enter_context(self.server)
            for pod in self.lab.pods:
                pod.serve(TARGET_PORT)
            steady = open_service(_V4, "steady")
            self.churn = Churn(
                self.server, self._services, steady, endpoints(steady, _V4, *self.lab.pods), seed=self._seed
            )
            self.daemon = stack.enter_context(self._daemon())
            self.tables = DamagedTables(self.lab.node, self.backend)
            self.daemon.wait_in_step()
            self.tables.add_foreign()
            self._foreign = foreign_lines(self.tables.save())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _daemon(self) -> DaemonProcess:
        arguments = (*lab_arguments(self.server.url, self.backend), "--program-timeout", str(PROGRAM_TIMEOUT_S))
        return DaemonProcess(
            self.lab.node.netns,
            *arguments,
            environment=self._environment,
            shims=self.shims.folder,
            prefix=self._prefix,
        )

    def change(self, steps: int = 5) -> None:
        """Change some objects."""
        for _ in range(steps):
            self.churn.step()

    def restart(self) -> None:
        """Kill the daemon and start it anew, as whoever supervises it would."""
        self.daemon.stop(signal.SIGKILL)
        self.daemon.start()

    def judge(
        self,
        fault: str,
        inject: Callable[[], None],
        *,
        bound_s: float,
        spares_traffic: bool = True,
        attempts: int = 1,
    ) -> FaultOutcome:
        """
        Let *inject* break and mend something under traffic, and tell what it cost.

        Args:
            fault: Its name.
            inject: Returns when all is well again.
            bound_s: From then on the kernel has to be in step within this time.
            spares_traffic: Whether each connection to the untouched Service is to be answered.
            attempts: How often at most, while being late is all that is wrong; see `promptness`.
        """
        for _ in range(attempts - 1):
            outcome = self._judged(fault, inject, bound_s=bound_s, spares_traffic=spares_traffic)
            if not outcome.is_late_alone:
                return outcome
        return self._judged(fault, inject, bound_s=bound_s, spares_traffic=spares_traffic)

    def _judged(self, fault: str, inject: Callable[[], None], *, bound_s: float, spares_traffic: bool) -> FaultOutcome:
        # What the fault before did to a watch is over only when it is open again; until then changes wait for it.
        wait_until(lambda: self.server.watches() >= len(Kind), "all watches")
        descriptors, sent_again = self.descriptors(), self._sent_again()
        with (
            SteadyConnections(self.lab.pods[0], cluster_ip(_V4), 80, pause_s=_PAUSE_S) as inner,
            SteadyConnections(self.lab.client, balancer_ip(_V4), 80, pause_s=_PAUSE_S) as outer,
        ):
            inject()
            took_s, differences = self._settled()
        if not spares_traffic:
            # Attempts from that time are tracked without translation for two minutes, and a port may be used again.
            self.lab.node.run("conntrack", "-F")
        exchanges = (*inner.exchanges, *outer.exchanges)
        lost = {str(outcome): count for outcome, count in (inner.failures + outer.failures).items()}
        if sent_again == self._sent_again():
            # No packet was missed: this process itself had no processor for that long.
            lost.pop(Outcome.TIMEOUT, None)
        left = foreign_lines(self.tables.save())
        before, self._foreign = self._foreign, left
        return FaultOutcome(
            fault=fault,
            took_s=took_s,
            bound_s=bound_s,
            lost_updates=differences,
            lost_foreign=_differing(before, left),
            exchanges=len(exchanges),
            lost_exchanges=lost if spares_traffic else {},
            leaked=tuple(self._leaks(descriptors)),
        )

    def _sent_again(self) -> int:
        """TCP segments that the clients had to send more than once so far, connection attempts included."""
        return sum(_retransmissions(place.netns) for place in (self.lab.pods[0], self.lab.client))

    def _settled(self) -> tuple[float, int]:
        """Seconds until kernel and fresh render are the same, and how many lines still are not when patience ends."""
        began_s, fresh = time.monotonic(), self.fresh_lines()
        rendered_s = time.monotonic() - began_s
        try:
            wait_until(lambda: fresh == own_lines(self.tables.save()), "the kernel in step", poll_s=_PAUSE_S)
        except TimeoutError:
            return PATIENCE_S, _differing(fresh, own_lines(self.tables.save()))
        # Rendering for comparison takes some tenths of a second, in which the daemon may have ended long ago.
        return max(0.0, time.monotonic() - began_s - rendered_s), 0

    def fresh_lines(self) -> list[str]:
        """What a namespace gets that had no rules before."""
        with temporary_namespace("fresh") as netns:
            config = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))
            target = Target(netns=netns, backend=self.backend, families=(_V4,))
            report = sync_once(self.churn.objects, config, NODE_NAME, target)
            if report.error:
                raise report.error
            return own_lines(saved_tables(netns, f"iptables-{self.backend}"))

    def descriptors(self) -> int:
        """Open file descriptors of the daemon."""
        return len(os.listdir(f"/proc/{self.daemon.process_id}/fd"))  # noqa: PTH208 - only their number counts

    def processes(self) -> dict[int, str]:
        """The daemon and whatever it started, those of its earlier lives too: process id and command line."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:  # it has ended meanwhile
                continue
        return {number: line for number, line in found.items() if line}

    def _leaks(self, descriptors: int) -> list[str]:
        def others() -> list[str]:
            return [line for number, line in self.processes().items() if number != self.daemon.process_id]

        def more() -> int:
            return self.descriptors() - descriptors

        # A daemon that has just begun has pipes and connections that end by themselves; what leaked stays.
        with suppress(TimeoutError):
            wait_until(
                lambda: not others() and more() <= _SPARE_DESCRIPTORS,
                "no other process and no further descriptor",
            )
        leaks = [f"process {line}" for line in others()]
        leaks += [f"file {path.name}" for path in self.temporary.iterdir()]
        return [*leaks, *([f"{more()} descriptors"] if more() > _SPARE_DESCRIPTORS else [])]


def _retransmissions(netns: str) -> int:
    with inside(netns):
        lines = Path("/proc/thread-self/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(dict(zip(names, values, strict=True))["RetransSegs"])


def _differing(wanted: list[str], found: list[str]) -> int:
    """How many lines are in one list only; 1 if the order alone differs."""
    return len(set(wanted) ^ set(found)) or int(wanted != found)


def run(*command: str) -> str:
    """Run a program outside of the lab; returns its output."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
