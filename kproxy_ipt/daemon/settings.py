"""What a daemon is given when it begins."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.metrics_pages import Process
from kproxy_ipt.objects.events import Event


class Source(Protocol):
    """Something that watches objects."""

    async def run(self, deliver: Callable[[Event], None]) -> None:
        """Deliver events until cancelled."""
        ...


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a daemon is told once.

    Attributes:
        config: The effective configuration.
        node_name: Own node name.
        target: Where rules are written.
        process: What the debug pages tell.
        compare_period_s: From one comparison of everything to the next, where nothing else asks for one.
    """

    config: Config
    node_name: str
    target: Target
    process: Process
    compare_period_s: float = 600.0
