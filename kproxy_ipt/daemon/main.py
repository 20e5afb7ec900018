"""The life of a daemon: from its first line to a signal."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.family_loop import Clocks
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.proxy import Proxy, Settings, Source
from kproxy_ipt.daemon.systemd import Notifier
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.sources.file_signal import FileWatch

_OOM_SCORE_ADJ = "/proc/self/oom_score_adj"


async def run_daemon(
    settings: Settings,
    source: Source,
    log: Log,
    clocks: Clocks,
    *,
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
        config_path: Configuration file, "" for none.
        read_config: Reads it anew, flags included.

    Raises:
        KernelError: The machine cannot be used at all.
        ListenError: With `bindAddressHardFail`.
    """
    notifier = Notifier()
    proxy = Proxy(settings, source, log, clocks, on_ready=notifier.ready)
    _set_oom_score(settings.config.oom_score_adj)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, proxy.compare_all, "SIGHUP")
    helpers = [asyncio.create_task(_stay_alive(notifier))]
    if config_path and read_config is not None:
        helpers.append(asyncio.create_task(_follow_config(config_path, read_config, proxy, notifier, log)))
    work = asyncio.create_task(proxy.run())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        notifier.stopping()
        await _end([*helpers, stopped, *(() if work.done() else (work,))])
    if work.done() and not work.cancelled():
        _raise_cause(work)
    log.info("stopped", rules="they stay")


def _raise_cause(work: "asyncio.Task[None]") -> None:
    """Raise what ended the daemon, without the group that it came in."""
    error = work.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error


async def _end(tasks: "list[asyncio.Task[None]] | list[asyncio.Task[bool]] | list[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
    watch = asyncio.create_task(FileWatch(path, changed.set).run())
    try:
        while True:
            await changed.wait()
            changed.clear()
            notifier.reloading()
            try:
                await proxy.reload(read_config())
            except ConfigError as error:
                log.warning("configuration", refused=str(error), now="the one before stays in force")
            notifier.ready()
    finally:
        watch.cancel()


def _set_oom_score(score: int) -> None:
    """As kube-proxy does; without the right to it nothing is lost."""
    with contextlib.suppress(OSError):
        Path(_OOM_SCORE_ADJ).write_text(str(score), encoding="ascii")
