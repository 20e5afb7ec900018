"""
What a run says about itself: structlog on standard error, for people on a terminal, JSON lines otherwise.

Verbosity is klog's: below 2 what a person should know, from 2 on every sync and every step.
"""

import logging
import sys
from typing import Protocol

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


def open_log(*, verbosity: int, as_json: bool | None = None) -> Log:
    """
    A logger on standard error.

    Args:
        verbosity: 0 and up.
        as_json: None means JSON unless standard error is a terminal.
    """
    import structlog  # 80 ms that quiet commands do without

    is_json = not sys.stderr.isatty() if as_json is None else as_json
    level = logging.INFO if verbosity < _EVERY_STEP else logging.DEBUG
    form: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if is_json else structlog.dev.ConsoleRenderer()
    )
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            form,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    return log
