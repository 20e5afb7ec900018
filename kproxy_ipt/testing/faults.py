"""The faults themselves: each breaks one thing of a `FaultLab`, lets objects change meanwhile, and mends it."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.daemon_process import wait_until
from kproxy_ipt.testing.damage import own_lines
from kproxy_ipt.testing.fault_lab import FaultLab, FaultOutcome, run
from kproxy_ipt.testing.memory_limits import NO_GROUPS, address_space, can_limit_memory, memory_group

_CHANCE = random.Random()
_WRITES = 'case "$*" in *--noflush*) {};; esac'
_GARBAGE = "head -c 3000 /dev/urandom >&2"
_VERSION = 'case "$*" in *--version) echo "{}"; exit 0;; esac'
_RETRIES_S = 8.0
"""1 + 2 + 4 s until a third attempt, and the sync."""


class NamedFault(msgspec.Struct, frozen=True):
    """
    A fault.

    Attributes:
        name: Of the table of results.
        inject: See `FaultLab.judge`.
        bound_s: See there.
        spares_traffic: See there.
        only: The backend that it is for; "" for both.
        ends_life: Whether the daemon that runs afterwards may be another one.
    """

    name: str
    inject: Callable[[FaultLab], None]
    bound_s: float
    spares_traffic: bool = True
    only: str = ""
    ends_life: bool = False

    def meet(self, node: FaultLab, *, attempts: int = 1) -> FaultOutcome:
        """Let it happen to *node*; for *attempts* see `FaultLab.judge`."""
        return node.judge(
            self.name,
            lambda: self.inject(node),
            bound_s=self.bound_s,
            spares_traffic=self.spares_traffic,
            attempts=attempts,
        )

    def unfit(self, backend: str) -> str:
        """Why it cannot happen on this machine to rules of *backend*, or ""."""
        if self.only not in ("", backend):
            return f"only for the backend {self.only}"
        return NO_GROUPS if self.inject is short_of_memory and not can_limit_memory() else ""


def _times(runs: int, script: str) -> str:
    """*script* for the first *count* runs that write."""
    used = '"$0.used"'
    count = f"n=$(cat {used} 2>/dev/null || echo 0); echo $((n + 1)) > {used}"
    return _WRITES.format(f'{count}; [ "$n" -lt {runs} ] && {{ {script}; }}')


@contextmanager
def _acting(node: FaultLab, program: str, script: str) -> Iterator[None]:
    used = node.shims.folder / f"{program}.used"
    used.unlink(missing_ok=True)
    node.shims.act(program, script)
    try:
        yield
    finally:
        node.shims.relent(program)


def _restore_acts(script: str, *, failures: int = 0) -> Callable[[FaultLab], None]:
    """Objects change while the restore program does *script*, until syncs have failed so often."""

    def inject(node: FaultLab) -> None:
        with _acting(node, node.restore, script):
            before = node.shims.restores(node.backend)
            failed = len(node.daemon.log("sync failed"))
            node.change()

            def is_tried() -> bool:
                if node.shims.restores(node.backend) > before:
                    return True
                node.change(1)  # some changes make no difference to rules, as those of a slice without a Service
                return False

            wait_until(is_tried, "the restore was tried", poll_s=0.5)
            if failures:
                node.daemon.wait_for_log("sync failed", count=failed + failures)
            node.change()

    return inject


def _save_acts(script: str) -> Callable[[FaultLab], None]:
    """A comparison is asked for while the save program does *script*."""

    def inject(node: FaultLab) -> None:
        with _acting(node, node.save, script):
            before = node.shims.calls(node.save)
            node.daemon.signal(signal.SIGHUP)
            wait_until(lambda: node.shims.calls(node.save) > before, "the save was tried")
            node.change()

    return inject


def killed(node: FaultLab, chance: random.Random) -> None:
    """The daemon is killed at a random moment while objects change, and started again."""
    for _ in range(chance.randint(1, 20)):
        node.churn.step()
        time.sleep(chance.random() * 0.02)
    node.restart()
    node.change(3)
    node.daemon.wait_in_step()


def stopped(node: FaultLab, seconds: float) -> None:
    """The daemon gets no processor for a while, and objects change all the time."""
    node.daemon.signal(signal.SIGSTOP)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        node.change(1)
        time.sleep(0.1)
    node.daemon.signal(signal.SIGCONT)


def stopped_and_flushed(node: FaultLab) -> None:
    """While the daemon gets no processor, somebody empties our chains."""
    node.daemon.signal(signal.SIGSTOP)
    node.tables.run("nat", "-F", "KUBE-SERVICES")
    node.tables.run("filter", "-F", "KUBE-FORWARD")
    node.daemon.signal(signal.SIGCONT)


def overrun(node: FaultLab) -> None:
    """More messages of the kernel than fit into the buffer of a daemon that gets no processor, ours among the lost."""
    node.daemon.signal(signal.SIGSTOP)
    rules = "".join(f"-A FLOOD -s 10.200.{number >> 8}.{number & 255}/32 -j RETURN\n" for number in range(20_000))
    for _ in range(5):
        node.tables.restore(f"*filter\n:FLOOD -\n{rules}COMMIT\n", keeps_others=True)
    node.tables.run("nat", "-F", "KUBE-SERVICES")
    node.tables.restore("*filter\n:FLOOD -\n-X FLOOD\nCOMMIT\n", keeps_others=True)
    drops = [int(line.split()[8]) for line in node.lab.node.run("cat", "/proc/net/netlink").splitlines()[1:]]
    if not any(drops):
        raise RuntimeError("no message was lost")
    node.daemon.signal(signal.SIGCONT)


def without_descriptors(node: FaultLab) -> None:
    """No file can be opened any more, and no pipe, for two seconds; then it can again."""
    process_id = str(node.daemon.process_id)
    limits = run("prlimit", "--pid", process_id, "--nofile", "--raw", "--noheadings", "--output", "SOFT,HARD").split()
    run("prlimit", "--pid", process_id, f"--nofile={_free_descriptor(process_id)}:{limits[1]}")
    until_s = time.monotonic() + 2.0
    while time.monotonic() < until_s:
        node.change(1)
        time.sleep(0.1)
    node.server.cut_watches("/services")
    time.sleep(0.5)
    run("prlimit", "--pid", process_id, f"--nofile={limits[0]}:{limits[1]}")


def _free_descriptor(process_id: str) -> int:
    used = {int(name) for name in os.listdir(f"/proc/{process_id}/fd")}  # noqa: PTH208 - names are numbers
    return next(number for number in range(len(used) + 1) if number not in used)


def short_of_memory(node: FaultLab) -> None:
    """A limit that leaves no room for programs; whoever the kernel kills for it is started again by its supervisor."""
    group = memory_group(f"kproxy-ipt-{node.daemon.process_id}", 1 << 18)
    if group is None:
        raise RuntimeError(NO_GROUPS)

    def is_left() -> bool:
        _supervise(node)
        return group.is_emptied()

    try:
        group.add(node.daemon.process_id)
        for _ in range(10):
            node.change(2)
            time.sleep(0.1)
        if not group.was_short:
            raise RuntimeError("memory was never short")
    finally:
        group.lift()
        wait_until(is_left, "an empty group")
        group.remove()


def refused_memory(node: FaultLab) -> None:
    """Each request for memory of the daemon and its programs is refused until a sync fails of it."""
    failures = len(node.daemon.log("sync failed"))
    with address_space(node.daemon.process_id, 1 << 20):
        node.change()
        wait_until(lambda: not node.daemon.is_alive or len(node.daemon.log("sync failed")) > failures, "a failure")
    _supervise(node)


def _supervise(node: FaultLab) -> None:
    if not node.daemon.is_alive:
        node.restart()
        node.daemon.wait_in_step()


def program_missing(node: FaultLab) -> None:
    """The programs are gone from the machine as the daemon sees it, as while a package is being exchanged."""
    shims, away = node.shims.folder, node.shims.folder.with_name("away")
    shims.rename(away)
    enter = ("nsenter", "--mount", "--target", str(node.daemon.process_id))
    run(*enter, "mount", "--bind", str(node.temporary), "/usr/sbin")
    node.change()
    node.daemon.wait_for_log("sync failed", count=len(node.daemon.log("sync failed")) + 1)
    run(*enter, "umount", "/usr/sbin")
    away.rename(shims)


def _version_says(text: str, *, everywhere: bool = False, is_odd: bool = True) -> Callable[[FaultLab], None]:
    """
    A life of the daemon in which the restore program tells *text* as its version, and objects change.

    Args:
        text: What it prints.
        everywhere: Whether the programs of other names for the same backend do so as well.
        is_odd: Whether the daemon has to say so.
    """

    def inject(node: FaultLab) -> None:
        others = ("iptables-restore", f"xtables-{node.backend}-multi") if everywhere else ()
        node.shims.install(*others)
        odd = len(node.daemon.log("iptables program"))
        with ExitStack() as stack:
            for program in (node.restore, *others):
                said = text.format(told="nf_tables" if node.backend == "nft" else "legacy")
                stack.enter_context(_acting(node, program, _VERSION.format(said)))
            node.restart()
            node.daemon.wait_in_step()
            if is_odd != (len(node.daemon.log("iptables program")) > odd):
                raise RuntimeError(f"what the daemon says about {text!r}")
            node.change()
            wait_until(lambda: node.fresh_lines() == own_lines(node.tables.save()), "the kernel in step")
        node.restart()
        node.daemon.wait_in_step()

    return inject


def server_away(node: FaultLab) -> None:
    """The API server ends, its objects change, and it comes back."""
    node.server.stop()
    node.change()
    time.sleep(1.0)
    node.server.start()


def server_forgets(node: FaultLab) -> None:
    """Watches break and cannot be resumed: the history is gone (410)."""
    node.server.schedule(Fault.unavailable(), times=3)
    node.server.cut_watches()
    node.change()
    node.server.compact()


def server_breaks_lines(node: FaultLab) -> None:
    """Watches end in the middle of an event, three times."""
    for _ in range(3):
        node.change(3)
        node.server.cut_watches(after=b'{"type":"MODIFIED","object":{"kind":"Serv')
        time.sleep(0.2)


def server_errs(node: FaultLab) -> None:
    """All requests are answered 500, then lists come slowly and break off."""
    node.server.schedule(Fault.server_error(), times=3)
    node.server.schedule(Fault.slow(1.0), times=3)
    node.server.schedule(Fault.cut(2_000), times=1)
    node.server.cut_watches()
    node.change()
    node.server.compact()


def _anew(inject: Callable[[FaultLab], None]) -> Callable[[FaultLab], None]:
    """With a daemon that remembers no trouble: waits for the API server grow with all failures of two minutes."""

    def inject_anew(node: FaultLab) -> None:
        node.restart()
        node.daemon.wait_in_step()
        inject(node)

    return inject_anew


KILL = NamedFault("SIGKILL", lambda node: killed(node, _CHANCE), 5.0, ends_life=True)
LONG_STOP = NamedFault("SIGSTOP, 60 s", lambda node: stopped(node, 60.0), 10.0)
FAULTS = (
    NamedFault("restore takes 1.9 s", _restore_acts(_WRITES.format("sleep 1.9")), 6.0),
    NamedFault("restore hangs, once", _restore_acts(_times(1, "sleep 1000"), failures=1), _RETRIES_S),
    NamedFault("restore fails 3 times", _restore_acts(_times(3, "exit 1"), failures=1), _RETRIES_S),
    NamedFault("restore dies half-way", _restore_acts(_times(1, 'head -c 400 | "$REAL" "$@"; kill -9 $$')), _RETRIES_S),
    NamedFault("restore chatters", _restore_acts(_WRITES.format(_GARBAGE)), 3.0),
    NamedFault("restore fails with garbage", _restore_acts(_times(3, f"{_GARBAGE}; exit 1"), failures=1), _RETRIES_S),
    NamedFault("save takes 1.5 s", _save_acts("sleep 1.5"), 5.0),
    NamedFault("save hangs", _save_acts("sleep 1000"), _RETRIES_S),
    NamedFault("save fails", _save_acts("exit 1"), _RETRIES_S),
    NamedFault("save is cut off", _save_acts('"$REAL" "$@" | head -c 700; exit 0'), _RETRIES_S),
    NamedFault("save fails with garbage", _save_acts(f"{_GARBAGE}; exit 3"), _RETRIES_S),
    NamedFault("programs missing", program_missing, _RETRIES_S),
    KILL,
    NamedFault("SIGSTOP, 10 s", lambda node: stopped(node, 10.0), 5.0),
    NamedFault("SIGSTOP, and a flush", stopped_and_flushed, 5.0, spares_traffic=False),
    NamedFault("netlink buffer overrun", overrun, 5.0, spares_traffic=False, only="nft"),
    NamedFault("no file descriptors", without_descriptors, _RETRIES_S),
    NamedFault("memory limit", short_of_memory, _RETRIES_S, ends_life=True),
    NamedFault("memory refused", refused_memory, _RETRIES_S, ends_life=True),
    NamedFault("version is nonsense", _version_says("hello"), 5.0, ends_life=True),
    NamedFault("all versions are nonsense", _version_says("v-1.x", everywhere=True), 5.0, ends_life=True),
    NamedFault("version of nobody", _version_says("v1.8.9 (ebpf)"), 5.0, ends_life=True, only="nft"),
    NamedFault("version is ancient", _version_says("v1.4.7 ({told})", is_odd=False), 5.0, ends_life=True),
    NamedFault("API server away", _anew(server_away), 15.0, ends_life=True),
    NamedFault("API: 410", _anew(server_forgets), 15.0, ends_life=True),
    NamedFault("API: half lines", _anew(server_breaks_lines), 15.0, ends_life=True),
    NamedFault("API: 500, slow and broken lists", _anew(server_errs), 20.0, ends_life=True),
)
"""All of them, but for the long one."""
