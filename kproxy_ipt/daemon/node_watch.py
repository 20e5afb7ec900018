"""
The own Node over time: what rules depend on follows it, and what is odd about it is said again and again.

A Node that is deleted keeps counting as it was last seen: rules must not change because somebody re-creates it. A Node
that never was leaves zone, addresses and pod ranges unknown; rules are written all the same, but for mode NodeCIDR,
where they would masquerade wrongly.
"""

from collections.abc import Callable

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, DetectLocalMode
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.node import daemon_notes
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.objects.model import Node
from kproxy_ipt.state.model import NodeFacts
from kproxy_ipt.state.snapshot import node_facts

REMIND_S = 60.0


class NodeWatch:
    """
    Facts of the own Node.

    Attributes:
        facts: As last seen.
    """

    def __init__(self, name: str, config: Config, log: Log, clock: Callable[[], float]) -> None:
        """
        Know the name only.

        Args:
            name: Own node name.
            config: Decides whether pod ranges are needed; `config` can be replaced.
            log: Told what is odd.
            clock: Monotonic seconds.
        """
        self.facts = NodeFacts(name=name)
        self.config = config
        self._log = log
        self._clock = clock
        self._is_there = False
        self._reminded_s: float | None = None
        self._told: frozenset[str] = frozenset()

    def seen(self, node: Node | None) -> bool:
        """Take in the own Node, None where it is not; whether rules may depend on what changed."""
        self._is_there = node is not None
        if node is None:
            self.remind()
            return False
        facts = node_facts((node,), self.facts.name)
        is_news = facts != self.facts
        self.facts = facts
        return is_news

    @property
    def blocked(self) -> str:
        """Why no rules may be written, "" if they may."""
        if self.config.detect_local_mode is DetectLocalMode.NODE_CIDR and not self.facts.pod_cidrs:
            return f"detectLocalMode NodeCIDR needs spec.podCIDRs of Node {self.facts.name}"
        return ""

    def remind(self) -> None:
        """Say what is odd, at most once a minute."""
        odd = self._oddity()
        now_s = self._clock()
        if odd and (self._reminded_s is None or now_s - self._reminded_s >= REMIND_S):
            self._reminded_s = now_s
            self._log.warning("node", node=self.facts.name, odd=odd)

    def tell_ranges(self, families: frozenset[Family]) -> None:
        """
        Say what is odd about configuration and node together, when it becomes so.

        What `sync --once` refuses is said as well, and the daemon goes on: a Node that changes must not end it.
        """
        try:
            notes = daemon_notes(self.config, self.facts, families)
        except ConfigError as error:
            notes = error.problems
        for note in notes:
            if note not in self._told:
                self._log.warning("configuration", note=note)
        self._told = frozenset(notes)

    def _oddity(self) -> str:
        if self.blocked:
            return f"{self.blocked}; nothing is written until they are there"
        if not self.facts.known:
            return "there is no Node of this name: policy Local and hints do not work; is --hostname-override right?"
        return "" if self._is_there else "the Node was deleted: its last known zone, addresses and ranges are used"
