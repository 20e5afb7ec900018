"""`kproxy-ipt list`."""

from collections.abc import Iterable, Iterator

import click

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import BackendWish, open_machine
from kproxy_ipt.daemon.traffic_look import ServerList, look_at_servers
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.stats.virtual_servers import RealServer, VirtualServer
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import backend_option, family_option, netns_option, output_option, target_of
from kproxy_ipt_cli._output import TEXT, Plain, plain, print_document, print_notes
from kproxy_ipt_cli._service_names import NO_RULES, is_named, require_one

_HEAD = """Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn"""


@click.command(name="list", short_help="List virtual servers, real servers and their connections, as ipvsadm does.")
@click.argument("service", metavar="[[NAMESPACE/]NAME[:PORT]]", default="")
@family_option
@netns_option
@backend_option("Whose rules of the kernel.")
@output_option
@failing
def command(*, service: str, family: str, netns: str | None, backend: BackendWish, output: str) -> None:
    """
    List every address that rules translate, the endpoints behind it and their connections, as `ipvsadm -Ln` does.

    Only the kernel is read: its rules, whoever wrote them, and its table of connections. No cluster is needed.
    Connections to endpoints that no rule leads to any more are listed at the end.

    \b
    Examples:
      kproxy-ipt list
      kproxy-ipt list shop/web --netns lab
      kproxy-ipt list shop/web:http --family ipv4 --output json
    """
    with inside(netns):
        machine = open_machine(target_of(netns=netns, backend=backend, family=family, lock_wait=5))
        found = look_at_servers(machine)
    require_one(service, (one.service_port for one in found.servers))
    servers = [one for one in found.servers if is_named(service, one.service_port)]
    if not found.servers:
        print_notes((NO_RULES,))
    print_notes(f"connections of {one.api_name} are not known: {problem}" for one, problem in found.problems.items())
    if output == TEXT:
        _print_text(servers)
    else:
        print_document(_document(servers, found, machine.choice.backend), output)


def _document(servers: Iterable[VirtualServer], found: ServerList, backend: str) -> dict[str, Plain]:
    return {
        "command": "list",
        "backend": backend,
        "servers": [plain(one) for one in servers],
        "problems": {str(family): problem for family, problem in found.problems.items()},
    }


def _print_text(servers: list[VirtualServer]) -> None:
    click.secho(_HEAD, bold=True)
    for server in servers:
        click.echo(_server_line(server))
        for one in server.real_servers:
            click.echo(_real_line(one))
    gone = list(_gone_lines(servers))
    if gone:
        click.echo()
        click.secho("Connections to endpoints that rules do not lead to any more:", bold=True)
        click.echo("\n".join(gone))


def _server_line(server: VirtualServer) -> str:
    words = [f"{server.protocol.upper():4}", _where(server), server.scheduler or "-"]
    if server.affinity_s:
        words.append(f"persistent {server.affinity_s}")
    if server.policy == "Local":
        words.append("local")
    return f"{' '.join(words)} ({server.service_port})"


def _where(server: VirtualServer) -> str:
    address = server.address or ("::" if server.family is Family.IPV6 else "0.0.0.0")
    return f"[{address}]:{server.port}" if server.family is Family.IPV6 else f"{address}:{server.port}"


def _real_line(one: RealServer) -> str:
    return f"  -> {one.endpoint:28} {'Masq':7} {one.weight:<6} {one.active:<10} {one.inactive:<10}".rstrip()


def _gone_lines(servers: Iterable[VirtualServer]) -> Iterator[str]:
    for server in servers:
        if server.gone:
            yield f"{server.protocol.upper():4} {_where(server)} ({server.service_port})"
            yield from map(_real_line, server.gone)
