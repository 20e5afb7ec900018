"""How far long work has come: a bar on the terminal while it lasts, nothing elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TaskID

from kproxy_ipt.daemon.report import Progress

_FEWEST_STEPS = 5
"""Shorter work is over before anybody has read of it."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Give what long work calls after each step; the bar goes to standard error, and is gone when the work is done."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    bar = Bar(console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def step(what: str, done: int, total: int) -> None:
        if total < _FEWEST_STEPS:
            return
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
            bar.start()
        bar.update(tasks[what], completed=done, total=total)

    try:
        yield step
    finally:
        if tasks:
            bar.stop()
