"""
The life of a daemon: from its first line to a signal, or to a bug.

What nobody expected ends the process with a traceback in the log, so that a supervisor starts it anew and everybody
sees it: a daemon that lost one of its tasks would look alive and no longer follow the cluster. Rules stay.
"""

import asyncio
import contextlib
import signal
import traceback
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.cluster_events import ClusterEvents
from kproxy_ipt.daemon.family_loop import Clocks
from kproxy_ipt.daemon.health_ports import HealthPortProblem
from kproxy_ipt.daemon.leftovers import remove_leftovers
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.proxy import Proxy
from kproxy_ipt.daemon.quarantine import Refusal
from kproxy_ipt.daemon.settings import Settings, Source
from kproxy_ipt.daemon.systemd import Notifier
from kproxy_ipt.errors import ConfigError, KproxyError, RulesetError
from kproxy_ipt.sources.file_signal import FileWatch

_OOM_SCORE_ADJ = "/proc/self/oom_score_adj"


async def run_daemon(
    settings: Settings,
    source: Source,
    log: Log,
    clocks: Clocks,
    *,
    events: ClusterEvents,
    config_path: str = "",
    read_config: Callable[[], Config] | None = None,
) -> None:
    """
    Run until SIGTERM or SIGINT; rules stay.

    SIGHUP compares everything with the kernel. A new content of *config_path* is taken over as far as possible.

    Args:
        settings: What the daemon is told once.
        source: Of the objects.
        log: Told what happens.
        clocks: Time.
        events: Tells the cluster.
        config_path: Configuration file, "" for none.
        read_config: Reads it anew, flags included.

    Raises:
        KernelError: The machine cannot be used at all.
        ListenError: With `bindAddressHardFail`.
        Exception: A bug, wherever it showed; it is in the log.
    """
    notifier, in_step, ending = Notifier(), asyncio.Event(), _Ending(log)

    def on_ready(counts: str) -> None:
        """Every family is in step."""
        in_step.set()
        notifier.ready(counts)

    proxy = _told_to_cluster(settings, source, log, clocks, events, on_ready)
    events.started()
    _set_oom_score(settings.config.oom_score_adj)
    ending.expect()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, proxy.compare_all, "SIGHUP")
    works = [proxy.run(), events.run(), _stay_alive(notifier), _remove_leftovers(in_step, settings.target, proxy, log)]
    if config_path and read_config is not None:
        works.append(_follow_config(config_path, read_config, proxy, notifier, log))
    await ending.work_until(works, notifier.stopping)
    log.info("stopped", rules="they stay")


def _told_to_cluster(
    settings: Settings,
    source: Source,
    log: Log,
    clocks: Clocks,
    events: ClusterEvents,
    on_ready: Callable[[str], None],
) -> Proxy:
    """A daemon whose troubles with a Service are events of the cluster."""

    def on_refusal(refusal: Refusal) -> None:
        events.rules_refused(refusal, proxy.inputs.service_uid(refusal.service))

    def report(problem: HealthPortProblem) -> None:
        events.port_not_served(problem, proxy.inputs.service_uid(problem.service))

    proxy = Proxy(settings, source, log, clocks, report=report, on_refusal=on_refusal, on_ready=on_ready)
    return proxy


class _Ending:
    """What ends a daemon: a signal, or the first bug, wherever it shows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._is_due = asyncio.Event()
        self._failures: list[BaseException] = []

    def expect(self) -> None:
        """Listen to signals and to what fails in callbacks."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._is_due.set)
        loop.set_exception_handler(lambda _, context: self._judge(context))

    async def work_until(self, works: Iterable[Coroutine[None, None, None]], on_end: Callable[[], None]) -> None:
        """Do all *works* until the end, say that it has come, and cancel them; raises what failed first."""
        tasks = [asyncio.create_task(self._report_failure(work)) for work in works]
        try:
            await self._is_due.wait()
        finally:
            on_end()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._failures:
            _raise_cause(self._failures[0], self._log)

    async def _report_failure(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - raised again when everything has ended
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failures.append(error)
        self._is_due.set()

    def _judge(self, context: dict[str, Any]) -> None:
        """What happened in a callback: a bug of ours ends the daemon, troubles of connections do not."""
        error = context.get("exception")
        if isinstance(error, Exception) and _is_ours(error):
            self._fail(error)
        else:
            self._log.warning("event loop", message=str(context.get("message", "")), error=repr(error))


def _is_ours(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__", "")).startswith("kproxy_ipt") for frame, _ in frames)


def _raise_cause(error: BaseException, log: Log) -> NoReturn:
    """Raise what ended the daemon, without the group that it came in; a bug is told with all that is known."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, KproxyError) or isinstance(error, RulesetError):
        log.warning("bug", error=repr(error), rules="they stay", traceback="".join(traceback.format_exception(error)))
    raise error


async def _remove_leftovers(in_step: asyncio.Event, target: Target, proxy: Proxy, log: Log) -> None:
    """What would answer for our Services a second time goes, once our own rules stand."""
    await in_step.wait()
    if proxy.backend is not None:
        used = msgspec.structs.replace(target, backend=proxy.backend.value)
        await remove_leftovers(used, log, proxy.metrics)


async def _stay_alive(notifier: Notifier) -> None:
    """Tell the watchdog of systemd that the loop turns."""
    interval_s = notifier.watchdog_interval_s
    while interval_s is not None:
        notifier.alive()
        await asyncio.sleep(interval_s)


async def _follow_config(
    path: str, read_config: Callable[[], Config], proxy: Proxy, notifier: Notifier, log: Log
) -> None:
    changed = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(FileWatch(path, changed.set).run())
        while True:
            await changed.wait()
            changed.clear()
            notifier.reloading()
            try:
                await proxy.reload(read_config())
            except ConfigError as error:
                log.warning("configuration", refused=str(error), now="the one before stays in force")
            notifier.ready()


def _set_oom_score(score: int) -> None:
    """As kube-proxy does; without the right to it nothing is lost."""
    with contextlib.suppress(OSError):
        Path(_OOM_SCORE_ADJ).write_text(str(score), encoding="ascii")
