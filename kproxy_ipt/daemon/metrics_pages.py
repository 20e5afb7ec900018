"""
The pages of the metrics server, by default on port 10249 of the loopback address.

As with kube-proxy its `/healthz` says nothing about rules: it only shows that the process answers.

Of the profiles that kube-proxy has behind `enableProfiling` there are two that mean something here: `cmdline`, and
`goroutine`, which shows where every thread and task stands. Decided against: kube-proxy's PUT to `/debug/flags/v`, by
which anybody who reaches the port sets the verbosity of the log; the configuration file does that.

Source: kube-proxy 1.36, `cmd/kube-proxy/app/server.go`; component-base zpages, healthz, configz.
"""

import asyncio
import io
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping

import msgspec

from kproxy_ipt import __version__
from kproxy_ipt.config.encode import config_document
from kproxy_ipt.config.feature_gates import is_enabled
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.answers import Answer, Request, json_answer, not_found, text_answer
from kproxy_ipt.daemon.health import rfc3339
from kproxy_ipt.daemon.metrics import CONTENT_TYPE, Metrics, ServiceLevels

_WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is "
    "for debugging purposes only."
)
_PROFILES = {"cmdline": "the command line", "goroutine": "where every thread and every task stands"}


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the debug pages tell about this process.

    Attributes:
        flags: Values of the command line by name, without dashes.
        command_line: Program and arguments.
        started_ns: Wall clock.
        set_verbosity: Sets the verbosity of the log.
    """

    flags: Mapping[str, str]
    command_line: tuple[str, ...]
    started_ns: int
    set_verbosity: Callable[[int], None]


class MetricsPages:
    """Answers for *metrics* and *config*; *wall_clock_ns* is nanoseconds since 1970."""

    def __init__(self, metrics: Metrics, config: Config, process: Process, *, wall_clock_ns: Callable[[], int]) -> None:
        self._metrics = metrics
        self._config = config
        self._process = process
        self._wall_clock_ns = wall_clock_ns
        self._levels = ServiceLevels()
        self._pages = dict(self._enabled_pages())

    def respond(self, request: Request) -> Answer:
        """Answer a request."""
        page = self._pages.get(request.path)
        return not_found() if page is None else page(request)

    def _enabled_pages(self) -> Iterator[tuple[str, Callable[[Request], Answer]]]:
        yield "/metrics", lambda _: Answer(body=self._metrics.text(), content_type=CONTENT_TYPE)
        yield "/metrics/slis", lambda _: Answer(body=self._levels.text(), content_type=CONTENT_TYPE)
        yield "/healthz", self._healthz
        yield "/healthz/ping", self._healthz_ping
        yield "/proxyMode", lambda _: text_answer(self._config.mode)
        yield "/configz", lambda _: json_answer({"kubeproxy.config.k8s.io": config_document(self._config)})
        gates = self._config.feature_gates
        if is_enabled(gates, "ComponentFlagz"):
            yield "/flagz", self._flagz
        if is_enabled(gates, "ComponentStatusz"):
            yield "/statusz", self._statusz
        if self._config.enable_profiling:
            yield (
                "/debug/pprof/",
                lambda _: text_answer("".join(f"{name}\t{what}\n" for name, what in _PROFILES.items())),
            )
            yield "/debug/pprof/cmdline", lambda _: text_answer("\0".join(self._process.command_line))
            yield "/debug/pprof/goroutine", lambda _: text_answer(_stacks())

    def _healthz(self, request: Request) -> Answer:
        self._levels.pinged()
        return text_answer("[+]ping ok\nhealthz check passed\n" if "verbose" in request.query else "ok")

    def _healthz_ping(self, _request: Request) -> Answer:
        self._levels.pinged()
        return text_answer("ok")

    def _flagz(self, _request: Request) -> Answer:
        lines = (f"{name}={value}" for name, value in sorted(self._process.flags.items()))
        return text_answer("\n".join(("", "kube-proxy flagz", _WARNING, "", *lines, "")))

    def _statusz(self, _request: Request) -> Answer:
        minutes, seconds = divmod((self._wall_clock_ns() - self._process.started_ns) // 10**9, 60)
        lines = (
            f"Started: {rfc3339(self._process.started_ns)}",
            f"Up: {minutes // 60} hr {minutes % 60:02d} min {seconds:02d} sec",
            f"Python version: {platform.python_version()}",
            f"Binary version: kproxy-ipt {__version__}",
            "",
            f"Paths: {' '.join(sorted(self._pages))}",
        )
        return text_answer("\n".join(("", "kube-proxy statusz", _WARNING, "", *lines, "")))


def _stacks() -> str:
    """Innermost call last, threads first."""
    text = io.StringIO()
    for number, frame in sys._current_frames().items():  # noqa: SLF001  (the documented way)
        text.write(f"thread {number}:\n{''.join(traceback.format_stack(frame))}\n")
    for task in asyncio.all_tasks():
        text.write(f"task {task.get_name()}:\n")
        task.print_stack(file=text)
        text.write("\n")
    return text.getvalue()
