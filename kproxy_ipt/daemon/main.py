"""
The life of a daemon: from its first line to a signal, or to a bug.

What nobody expected ends the process with a traceback in the log, so that a supervisor starts it anew and everybody
sees it: a daemon that lost one of its tasks would look alive and no longer follow the cluster. Rules stay.
"""

import asyncio
import contextlib
import signal
import traceback
from collections.abc import Callable, Coroutine
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
    notifier = Notifier()
    in_step = asyncio.Event()

    def on_ready(counts: str) -> None:
        """Every family is in step."""
        in_step.set()
        notifier.ready(counts)

    def on_refusal(refusal: Refusal) -> None:
        """The kernel refused a Service."""
        events.rules_refused(refusal, proxy.inputs.service_uid(refusal.service))

    def report(problem: HealthPortProblem) -> None:
        """A health check node port is not served."""
        events.port_not_served(problem, proxy.inputs.service_uid(problem.service))

    proxy = Proxy(
        settings,
        source,
        log,
        clocks,
        report=report,
        on_refusal=on_refusal,
        on_ready=on_ready,
    )
    events.started()
    _set_oom_score(settings.config.oom_score_adj)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, proxy.compare_all, "SIGHUP")
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        stop.set()

    loop.set_exception_handler(lambda _, context: _judge(context, log, failed))
    works = [proxy.run(), events.run(), _stay_alive(notifier), _remove_leftovers(in_step, settings.target, proxy, log)]
    if config_path and read_config is not None:
        works.append(_follow_config(config_path, read_config, proxy, notifier, log))
    tasks = [asyncio.create_task(_report_failure(work, failed)) for work in works]
    try:
        await stop.wait()
    finally:
        notifier.stopping()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failures:
        _raise_cause(failures[0], log)
    log.info("stopped", rules="they stay")


async def _report_failure(work: Coroutine[None, None, None], failed: Callable[[BaseException], None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - raised again when everything has ended
        failed(error)


def _judge(context: dict[str, Any], log: Log, failed: Callable[[BaseException], None]) -> None:
    """What happened in a callback: a bug of ours ends the daemon, troubles of connections do not."""
    error = context.get("exception")
    if isinstance(error, Exception) and _is_ours(error):
        failed(error)
    else:
        log.warning("event loop", message=str(context.get("message", "")), error=repr(error))


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
