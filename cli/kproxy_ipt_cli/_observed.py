"""What the kernel counted, beside what `explain` says: looked for where it can be, and no reason to fail."""

import os
from collections.abc import Iterable, Mapping

import click
import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import Target, open_machine
from kproxy_ipt.daemon.traffic_look import CountedText, scan_families
from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.stats.model import ServiceTraffic
from kproxy_ipt.stats.observed import port_traffic, unlike_words
from kproxy_ipt.trace.explanation import PortExplanation
from kproxy_ipt_cli._output import Plain, counted, plain
from kproxy_ipt_cli.stats import count_cells, count_columns


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the rules of one network namespace counted.

    Attributes:
        families: By family that could be read.
        problem: Why nothing was read; "" if something was.
        is_asked_for: Whether the user wants to hear of *problem*.
    """

    families: Mapping[Family, CountedText] = msgspec.field(default_factory=dict)
    problem: str = ""
    is_asked_for: bool = False

    def traffic(self, port: PortExplanation) -> ServiceTraffic | None:
        """What was counted for a service port; None if no rule is of it."""
        found = self.families.get(port.family)
        return port_traffic(port, found.seen, found.destinations) if found else None

    def document(self, ports: Iterable[PortExplanation]) -> dict[str, Plain]:
        """What programs get."""
        found = [traffic for port in ports if (traffic := self.traffic(port)) is not None]
        return {"traffic": [plain(one) for one in found], "traffic_problem": self.problem or None}

    def has_rules(self, family: Family) -> bool:
        """Whether rules of any Service were found."""
        return family in self.families and bool(self.families[family].seen.choices)


def observe(target: Target, *, wanted: bool | None) -> Observed:
    """
    Read counters, if the kernel can be read.

    Args:
        target: Where.
        wanted: None: without a word where it cannot be read, unless a namespace was named.
    """
    is_asked_for = wanted or target.netns is not None
    if wanted is False:
        return Observed(problem="not asked for")
    if wanted is None and os.geteuid() != 0:
        return Observed(problem="only root may read the rules of the kernel", is_asked_for=is_asked_for)
    try:
        with inside(target.netns):
            return Observed(families=scan_families(open_machine(target)), is_asked_for=is_asked_for)
    except KernelError as error:
        return Observed(problem=str(error), is_asked_for=is_asked_for)


def print_summary(port: PortExplanation, traffic: ServiceTraffic | None, observed: Observed) -> None:
    """Print what was counted for a service port and whether it fits; nothing where nothing was read."""
    if traffic is None:
        if observed.has_rules(port.family) or (observed.is_asked_for and port.family in observed.families):
            click.secho("observed: the kernel has no rule of this service port; try `kproxy-ipt check`", fg="yellow")
        return
    counts = f"{counted(traffic.connections, 'connection')}, {traffic.rejected} rejected, {traffic.dropped} dropped"
    click.echo(f"observed: {counts} since the rules were written")
    click.echo(f"shares: {traffic.sentence}")
    unlike = unlike_words(port, traffic)
    if unlike:
        click.secho(f"rules: not those that these objects ask for: {unlike}; try `kproxy-ipt check`", fg="yellow")


class CountColumns:
    """
    The columns of what was counted for the endpoints of a service port.

    Attributes:
        names: Of the columns, () where nothing was counted.
    """

    def __init__(self, traffic: ServiceTraffic | None) -> None:
        """*traffic* is None where nothing was read."""
        endpoints = traffic.endpoints if traffic else ()
        has_both = traffic is not None and traffic.has_both_policies
        self.names = count_columns(traffic) if traffic and endpoints else ()
        self._cells = {one.endpoint: count_cells(one, has_both=has_both) for one in endpoints}

    def cells(self, endpoint: str) -> tuple[str, ...]:
        """Those of an endpoint; dashes for one that no rule leads to."""
        return self._cells.get(endpoint, ("-",) * len(self.names))
