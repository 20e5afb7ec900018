"""
`kproxy-ipt stats --watch`: one look after the other, with rates.

Counts begin with those of the kernel at the first look and only grow: what ends with its chain stays in the sum. What
a chain counted between the last look and its end is not known.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import count

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import Machine, Target
from kproxy_ipt.stats.ledger import CounterKey, Counts, Kind, Ledger
from kproxy_ipt.stats.model import ServiceTraffic, TrafficReport
from kproxy_ipt.stats.sums import counts_of, with_sums
from kproxy_ipt_cli._output import TEXT, print_document
from kproxy_ipt_cli._service_names import is_named, require_one
from kproxy_ipt_cli.stats import document_of, endpoint_columns, endpoint_rows, look

_WIDTH_OF_PIPES = 200


class _Round(msgspec.Struct, frozen=True):
    """One look with the sums so far: *rates* are connections for each second, by family and key."""

    report: TrafficReport
    services: tuple[ServiceTraffic, ...]
    rates: Mapping[tuple[Family, CounterKey], float]


def watch_traffic(
    machine: Machine, target: Target, service: str, *, interval_s: float, rounds: int | None, output: str
) -> None:
    """
    Show what is counted until Ctrl-C, or *rounds* times.

    Args:
        machine: Whose rules.
        target: Where they are.
        service: As a person names it, "" for all.
        interval_s: Between two looks.
        rounds: None for no end.
        output: `text` draws on the terminal; others print one document for each look.
    """
    found = _rounds(machine, target, interval_s, rounds)
    if output != TEXT:
        for one in found:
            services = [each for each in one.services if is_named(service, each.service_port)]
            print_document(document_of(one.report, services), output)
        return
    console = Console(no_color=click.get_current_context().color is False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_PIPES
    with Live(console=console, auto_refresh=False, transient=False) as live:
        for number, one in enumerate(found):
            if number == 0:
                require_one(service, (each.service_port for each in one.services))
            live.update(_picture(one, service), refresh=True)


def _rounds(machine: Machine, target: Target, interval_s: float, rounds: int | None) -> Iterator[_Round]:
    counts = {family: _FamilyCounts(family) for family in machine.iptables}
    before_s = 0.0
    for number in count() if rounds is None else range(rounds):
        if number:
            time.sleep(interval_s)
        report = look(machine, target)
        seconds = report.unix_time_s - before_s if number else 0.0
        before_s = report.unix_time_s
        services = tuple(one for each in counts.values() for one in each.take(report, seconds))
        rates = {(family, key): rate for family, each in counts.items() for key, rate in each.rates.items()}
        yield _Round(report, services, rates)


class _FamilyCounts:
    """The sums of one family, and how fast they grew: *rates* are for each second."""

    def __init__(self, family: Family) -> None:
        self.rates: Mapping[CounterKey, float] = {}
        self._family = family
        self._ledger = Ledger()
        self._ledger.start({})
        self._before: Counts = {}

    def take(self, report: TrafficReport, seconds: float) -> tuple[ServiceTraffic, ...]:
        """Take in a look, *seconds* after the last one; 0 for the first."""
        services = [one for one in report.services if one.family is self._family]
        with self._ledger.look() as seen:
            self._ledger.observe(counts_of(services), seen)
        sums = dict(self._ledger.sums)
        if seconds > 0:
            self.rates = {key: (number - self._before.get(key, 0)) / seconds for key, number in sums.items()}
        self._before = sums
        return with_sums(services, sums)


def _picture(one: _Round, service: str) -> RenderableType:
    wanted = [each for each in one.services if is_named(service, each.service_port)]
    at = Text(time.strftime("%H:%M:%S", time.localtime(one.report.unix_time_s)), style="dim")
    if service:
        return Group(at, *(_detail(one, each) for each in wanted))
    return Group(at, _overview(one, wanted))


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _overview(one: _Round, services: list[ServiceTraffic]) -> Table:
    table = _table("service port", "protocol", "family", "per second", "connections", "rejected", "dropped", "shares")
    for each in services:
        rate = sum(_rate(one, each, endpoint.endpoint) for endpoint in each.endpoints)
        numbers = map(str, (each.connections, each.rejected, each.dropped))
        cells = (each.service_port, each.protocol, each.family, f"{rate:.1f}", *numbers, each.skew)
        table.add_row(*map(Text, cells))
    return table


def _detail(one: _Round, service: ServiceTraffic) -> Table:
    title = f"{service.service_port} {service.family.api_name} {service.protocol}, shares: {service.skew}"
    table = _table(*endpoint_columns(service), "per second", title=title)
    for endpoint, cells in zip(service.endpoints, endpoint_rows(service), strict=True):
        # As Text, since rich takes `[...]` of a plain cell for a style.
        table.add_row(*map(Text, (*cells, f"{_rate(one, service, endpoint.endpoint):.1f}")))
    return table


def _rate(one: _Round, service: ServiceTraffic, endpoint: str) -> float:
    key = CounterKey(service.service_port, service.protocol, Kind.CONNECTIONS, endpoint)
    return one.rates.get((service.family, key), 0.0)
