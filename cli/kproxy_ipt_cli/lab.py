"""`kproxy-ipt lab`: up, status, curl, down."""

import shutil
from collections.abc import Callable
from typing import Any

import click

from kproxy_ipt.addresses import Family
from kproxy_ipt.lab.curl import CurlReport, curl
from kproxy_ipt.lab.destination import Wish
from kproxy_ipt.lab.layout import DEFAULT_NAME, DEFAULT_PORT, layout_of
from kproxy_ipt.lab.lifecycle import down, up
from kproxy_ipt.lab.status import LabStatus, read_status, wait_in_step
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import output_option
from kproxy_ipt_cli._output import TEXT, plain, print_document, print_table
from kproxy_ipt_cli.lab_faults import break_command, check_command, fix_command

_PATIENCE_S = 3.0


def lab_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--name`: which lab."""
    return click.option(
        "--name",
        default=DEFAULT_NAME,
        show_default=True,
        metavar="NAME",
        help="Which lab; its network namespaces are called NAME-n1 and so on.",
    )(command)


@click.group(name="lab", short_help="Run a teaching cluster without Kubernetes, in network namespaces.")
def command() -> None:
    """
    A teaching cluster without Kubernetes: two nodes, pods and a client as network namespaces, and an API for kubectl.

    Each node has its own kproxy-ipt; pods are HTTP servers that answer with their name. Needs root; nothing of the
    machine itself is changed.

    \b
    Examples:
      kproxy-ipt lab up
      export KUBECONFIG=/run/kproxy-ipt-lab/lab/lab.conf
      kubectl get svc,pods,endpointslices -o wide
      kproxy-ipt lab curl web -n 30
      ip netns exec lab-n1 iptables-save -t nat
      kproxy-ipt lab down
    """


for _each in (break_command, check_command, fix_command):
    command.add_command(_each)


@command.command(name="up", short_help="Start a lab.")
@lab_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port of the API on 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--backend",
    type=click.Choice(["nft", "legacy", "auto"]),
    default="auto",
    show_default=True,
    help="Which iptables the nodes use.",
)
@click.option("--empty", is_flag=True, help="Begin without the Service web and its pods.")
@failing
def up_command(*, name: str, port: int, backend: str, empty: bool) -> None:
    """
    Start a lab in the background, and wait until its pods answer and its rules are written.

    A lab that is up is left as it is; what a dead one left is removed first.

    \b
    Examples:
      kproxy-ipt lab up
      kproxy-ipt lab up --name second --port 6445 --backend legacy
    """
    layout = layout_of(name)
    _print_how_to(up(layout, port=port, backend=backend, with_web=not empty, progress=click.echo))


@command.command(name="status", short_help="Show nodes, pods and Services of a lab.")
@lab_option
@output_option
@failing
def status_command(*, name: str, output: str) -> None:
    """
    Show the nodes of a lab and their kproxy-ipt, its pods and its Services.

    \b
    Examples:
      kproxy-ipt lab status
      kproxy-ipt lab status --output json
    """
    status = read_status(layout_of(name))
    if output == TEXT:
        _print_status(status)
    else:
        print_document({"command": "lab status", "exit_code": 0, "lab": plain(status)}, output)


@command.command(name="curl", short_help="Send requests in a lab, and count who answers.")
@lab_option
@click.argument("target")
@click.option("--from", "place", default="", metavar="PLACE", help="client, a node or a pod; default: one that fits.")
@click.option("-n", "--count", type=click.IntRange(1, 100_000), default=10, show_default=True, help="So many requests.")
@click.option("--port", default="", metavar="PORT", help="Number or name of a port of the target; default the first.")
@click.option("--family", type=click.Choice(["ipv4", "ipv6"]), help="Of the address; default the first.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.05, 60.0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for each connection, and for each answer.",
)
@output_option
@failing
def curl_command(
    *, name: str, target: str, place: str, count: int, port: str, family: str | None, timeout: float, output: str
) -> None:
    """
    Send requests, each on a new connection, and count who answers.

    TARGET is a Service (web, web.demo), a pod, a node or an address, with or without :PORT, or a URL. Services are
    entered by their cluster IP from nodes and pods, from the client by load balancer, external IP or node port. If a
    kproxy-ipt has changes to write, they are waited for, three seconds at most.

    Exit codes: 0 all requests were answered, 1 some or all were not.

    \b
    Examples:
      kproxy-ipt lab curl web -n 30
      kproxy-ipt lab curl web --from web-1 --family ipv6
      kproxy-ipt lab curl http://192.0.2.20:32080/
    """
    wish = Wish(target=target, place=place, port=port, family=Family(family) if family else None)
    layout = layout_of(name)
    wait_in_step(layout, patience_s=_PATIENCE_S)
    report = curl(layout, wish, count=count, timeout_s=timeout)
    code = ExitCode.DRIFT if report.failures else ExitCode.DONE
    if output == TEXT:
        _print_answers(report)
    else:
        print_document({"command": "lab curl", "exit_code": int(code), "curl": plain(report)}, output)
    raise SystemExit(int(code))


@command.command(name="down", short_help="Remove a lab.")
@lab_option
@failing
def down_command(*, name: str) -> None:
    """
    Remove a lab, living or dead: its processes, network namespaces and files.

    \b
    Examples:
      kproxy-ipt lab down
      kproxy-ipt lab down --name second
    """
    click.echo(f"lab {name} is removed" if down(layout_of(name)) else f"there is no lab {name}")


def _print_how_to(status: LabStatus) -> None:
    click.echo(f"\n  export KUBECONFIG={status.kubeconfig}\n  kubectl get svc,pods -o wide")
    if shutil.which("kubectl") is None:
        click.echo("\nkubectl is not installed here; it is in the Debian package kubernetes-client", err=True)


def _print_answers(report: CurlReport) -> None:
    click.echo(f"{report.count} x {report.url} ({report.way}) from {report.place}")
    rows = [
        (each.name, each.node or "-", str(each.count), f"{each.share:.1%}", ",".join(each.seen) or "-")
        for each in report.answers
    ]
    rows += [
        (f"({what})", "-", str(times), f"{times / report.count:.1%}", "-") for what, times in report.failures.items()
    ]
    print_table(("ANSWERED BY", "NODE", "TIMES", "SHARE", "CLIENT SEEN"), rows)


def _print_status(status: LabStatus) -> None:
    nodes = [
        (each.name, each.proxy, each.last_sync or "-", ",".join(each.addresses), each.netns) for each in status.nodes
    ]
    print_table(("NODE", "KPROXY-IPT", "LAST SYNC", "ADDRESSES", "NETNS"), nodes)
    click.echo()
    pods = [
        (
            f"{each.namespace}/{each.name}",
            "yes" if each.ready else "no",
            each.status,
            each.node or "-",
            ",".join(each.addresses) or "-",
            each.netns or "-",
        )
        for each in status.pods
    ]
    print_table(("POD", "READY", "STATUS", "NODE", "ADDRESSES", "NETNS"), pods)
    click.echo()
    services = [
        (
            f"{each.namespace}/{each.name}",
            each.type,
            ",".join(each.cluster_ips) or "-",
            ",".join(each.external_ips) or "-",
            each.ports,
            f"{each.ready} of {each.endpoints} ready",
        )
        for each in status.services
    ]
    print_table(("SERVICE", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORTS", "ENDPOINTS"), services)
    _print_how_to(status)
