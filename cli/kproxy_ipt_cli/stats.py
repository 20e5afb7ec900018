"""`kproxy-ipt stats`."""

import time
from collections.abc import Iterable, Iterator, Sequence

import click

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import BackendWish, Machine, Target, open_machine
from kproxy_ipt.daemon.traffic_look import look_at_traffic
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.stats.model import EndpointTraffic, ServiceTraffic, TrafficReport
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import backend_option, family_option, netns_option, output_option, target_of
from kproxy_ipt_cli._output import PERCENT, TEXT, Plain, percent, plain, print_document, print_notes, print_table
from kproxy_ipt_cli._service_names import NO_RULES, is_named, require_one


@click.command(name="stats", short_help="Count connections per Service and endpoint, beside the shares of the rules.")
@click.argument("service", metavar="[[NAMESPACE/]NAME[:PORT]]", default="")
@click.option("--watch", "-w", is_flag=True, help="Go on, with rates; counts survive changes of the rules.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two readings of --watch.",
)
@click.option("--rounds", type=click.IntRange(1), metavar="NUMBER", help="End --watch after so many readings.")
@family_option
@netns_option
@backend_option("Whose rules of the kernel.")
@output_option
@failing
def command(
    *,
    service: str,
    watch: bool,
    interval: float,
    rounds: int | None,
    family: str,
    netns: str | None,
    backend: BackendWish,
    output: str,
) -> None:
    """
    Print new connections per Service and endpoint, the share that rules give to each, and what was refused or dropped.

    Only the kernel is read, whoever wrote its rules. Its counters live as long as the chains do; `since change` counts
    from the last change of a Service's endpoints, and only that is held against the shares.

    \b
    Examples:
      kproxy-ipt stats
      kproxy-ipt stats shop/web --netns lab
      kproxy-ipt stats shop/web:http --watch --interval 1
    """
    target = target_of(netns=netns, backend=backend, family=family, lock_wait=5)
    with inside(netns):
        machine = open_machine(target)
    if watch:
        from kproxy_ipt_cli._watch import watch_traffic

        watch_traffic(machine, target, service, interval_s=interval, rounds=rounds, output=output)
        return
    report = look(machine, target)
    require_one(service, (one.service_port for one in report.services))
    services = [one for one in report.services if is_named(service, one.service_port)]
    if not report.services:
        print_notes((NO_RULES,))
    if output == TEXT:
        _print_text(services, report, in_detail=bool(service))
    else:
        print_document(document_of(report, services), output)


def look(machine: Machine, target: Target) -> TrafficReport:
    """Read the kernel in the namespace of *target*."""
    with inside(target.netns):
        return look_at_traffic(machine, clock=time.time)


def document_of(report: TrafficReport, services: Iterable[ServiceTraffic]) -> dict[str, Plain]:
    """What programs get."""
    return {
        "command": "stats",
        "unix_time_s": report.unix_time_s,
        "invalid_dropped": report.invalid_dropped,
        "services": [plain(one) for one in services],
    }


def _print_text(services: Sequence[ServiceTraffic], report: TrafficReport, *, in_detail: bool) -> None:
    if in_detail:
        for one in services:
            _print_service(one)
        return
    print_table(_COLUMNS, map(_row, services))
    if report.invalid_dropped:
        click.echo(f"{report.invalid_dropped} packets that connection tracking found invalid were dropped")


_COLUMNS = ("service port", "protocol", "family", "endpoints", "connections", "rejected", "dropped", "shares")


def _row(one: ServiceTraffic) -> tuple[str, ...]:
    endpoints = sum(not endpoint.is_gone for endpoint in one.endpoints)
    numbers = map(str, (endpoints, one.connections, one.rejected, one.dropped))
    return (one.service_port, one.protocol, one.family, *numbers, one.skew)


def _print_service(one: ServiceTraffic) -> None:
    click.secho(f"{one.service_port} {Family(one.family).api_name} {one.protocol}", bold=True)
    affinity = f", affinity {one.affinity_s} s" if one.affinity_s else ""
    click.echo(f"{one.connections} connections, {one.rejected} rejected, {one.dropped} dropped{affinity}")
    click.echo(f"shares: {one.sentence}")
    if one.endpoints:
        print_table(endpoint_columns(one), endpoint_rows(one), unit=PERCENT)
    click.echo()


def endpoint_columns(one: ServiceTraffic) -> tuple[str, ...]:
    """The columns of `endpoint_rows`; where both policies have a say, neither share alone is what to expect."""
    return ("endpoint", "share", "local", *count_columns(one))


def count_columns(one: ServiceTraffic) -> tuple[str, ...]:
    """The columns of `count_cells`."""
    expected = ("expected",) if one.has_both_policies else ()
    return (*expected, "observed", "since change", "connections")


def endpoint_rows(one: ServiceTraffic) -> Iterator[tuple[str, ...]]:
    """The cells of each endpoint: shares of the rules beside what was observed."""
    has_both = one.has_both_policies
    return (_endpoint_row(endpoint, has_both=has_both) for endpoint in one.endpoints)


def _endpoint_row(one: EndpointTraffic, *, has_both: bool) -> tuple[str, ...]:
    shares = ("gone", "-") if one.is_gone else (percent(one.share), percent(one.local_share))
    return (one.endpoint, *shares, *count_cells(one, has_both=has_both))


def count_cells(one: EndpointTraffic, *, has_both: bool) -> tuple[str, ...]:
    """What an endpoint got; before it what both policies together let expect, where *has_both* have a say."""
    expected = (percent(one.expected),) if has_both else ()
    return (*expected, percent(one.observed), str(one.recent), str(one.connections))
