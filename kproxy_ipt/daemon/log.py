"""
What a run says about itself: structlog on standard error, for people on a terminal, JSON lines otherwise.

Verbosity is klog's: below 2 what a person should know, from 2 on every sync and every step. It can be changed while the
daemon runs.
"""

import sys
from collections.abc import MutableMapping
from typing import Any, Protocol

_EVERY_STEP = 2


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def debug(self, event: str, **fields: object) -> object:
        """Every step."""

    def info(self, event: str, **fields: object) -> object:
        """What was done."""

    def warning(self, event: str, **fields: object) -> object:
        """What costs somebody something."""


class SilentLog:
    """Says nothing."""

    def debug(self, event: str, **fields: object) -> None:
        """Say nothing."""

    def info(self, event: str, **fields: object) -> None:
        """Say nothing."""

    def warning(self, event: str, **fields: object) -> None:
        """Say nothing."""


class Verbosity:
    """How much is said, a number from 0 up that may change at any time."""

    def __init__(self, number: int) -> None:
        """Begin with *number*."""
        self.number = number

    def set(self, number: int) -> None:
        """Say more, or less, from now on."""
        self.number = number

    @property
    def is_every_step(self) -> bool:
        """Whether single steps are worth a line."""
        return self.number >= _EVERY_STEP


def open_log(*, verbosity: Verbosity, as_json: bool | None = None) -> Log:
    """
    A logger on standard error.

    Args:
        verbosity: Asked for each line.
        as_json: None means JSON unless standard error is a terminal.
    """
    import structlog  # 80 ms that quiet commands do without

    is_json = not sys.stderr.isatty() if as_json is None else as_json
    form: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if is_json else structlog.dev.ConsoleRenderer()
    )

    def skip_steps(_: object, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if method == "debug" and not verbosity.is_every_step:
            raise structlog.DropEvent
        return line

    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            skip_steps,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            form,
        ],
        wrapper_class=structlog.BoundLogger,
    )
    return log
