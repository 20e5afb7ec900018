"""`kproxy-ipt render`."""

from collections.abc import Mapping

import click
import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.node import node_notes, own_node
from kproxy_ipt.plan.plan import plan_sync
from kproxy_ipt.rules.build import Desired, build_ruleset, with_base_chains
from kproxy_ipt.rules.fallbacks import set_aside_findings
from kproxy_ipt.ruleset.canonical import canonical_ruleset
from kproxy_ipt.ruleset.render import render_chain, render_input, render_save
from kproxy_ipt.ruleset.scan import SavedTables
from kproxy_ipt.state.model import MachineFacts, OptionalPart
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import (
    families_of,
    family_option,
    flag_options,
    interface_addresses_of,
    netns_option,
    node_address_option,
    output_option,
    request_of,
    source_options,
)
from kproxy_ipt_cli._output import TEXT, Plain, print_document, print_findings, print_notes, rejected
from kproxy_ipt_cli._reports import findings_document

_FORMS = ("restore", "save", "canonical")


@click.command(name="render", short_help="Print the rules that the objects ask for; touch nothing.")
@click.option(
    "--form",
    type=click.Choice(_FORMS),
    default="restore",
    show_default=True,
    help="restore: input for iptables-restore --noflush on a node without our rules. save: what iptables-save would "
    "print afterwards. canonical: the same, sorted, to compare with golden files.",
)
@click.option(
    "--staged", is_flag=True, help="Cut a large restore input into transactions of a size that suits nf_tables."
)
@node_address_option
@click.option(
    "--without",
    multiple=True,
    type=click.Choice([str(part) for part in OptionalPart]),
    help="A part that the machine lacks. Repeatable.",
)
@source_options
@family_option
@netns_option
@flag_options
@output_option
@failing
def command(
    *,
    form: str,
    staged: bool,
    node_addresses: tuple[str, ...],
    without: tuple[str, ...],
    paths: tuple[str, ...],
    context: str,
    family: str,
    netns: str | None,
    output: str,
    **flags: tuple[str, ...],
) -> None:
    """
    Print rules. The same objects and options give the same bytes, in whatever order the objects come.

    With both families each part begins with a comment line that names it; choose one family to feed a program.

    \b
    Examples:
      kproxy-ipt render --from web.yaml --family ipv4
      kproxy-ipt render --from web.yaml --family ipv4 | iptables-restore --noflush
      kproxy-ipt render --from manifests/ --form canonical --hostname-override n1
    """
    request = request_of(paths, context, flags)
    objects = request.read_objects()
    node = own_node(objects, request.config, request.node_name)
    facts = _facts(request.config, node_addresses, without, netns)
    objects = msgspec.structs.replace(
        objects, findings=(*objects.findings, *set_aside_findings(objects.services, facts))
    )
    families = families_of(family)
    wanted = {str(one): build_ruleset(take_snapshot(objects, one, node), request.config, facts) for one in families}
    print_notes((*request.config_notes, *node_notes(objects, request.config, node, frozenset(families))))
    print_findings(objects.findings)
    if output == TEXT:
        for name, desired in wanted.items():
            click.echo(f"# {name}" if len(wanted) > 1 else "", nl=len(wanted) > 1)
            click.echo(_text(desired, form, staged=staged), nl=False)
    else:
        print_document(
            {"command": "render", **findings_document(objects.findings), "families": _tables(wanted)}, output
        )
    if rejected(objects.findings):
        raise SystemExit(int(ExitCode.OBJECTS_REJECTED))


def _facts(config: Config, addresses: tuple[str, ...], without: tuple[str, ...], netns: str | None) -> MachineFacts:
    """A machine that has everything but *without*; one without addrtype must know its addresses."""
    lacking = frozenset((family, OptionalPart(part)) for family in Family for part in without)
    return MachineFacts(
        interface_addresses=interface_addresses_of(config, addresses, netns, needed=OptionalPart.ADDRTYPE in without),
        tcp_be_liberal=config.conntrack.tcp_be_liberal,
        lacking=lacking,
    )


def _text(desired: Desired, form: str, *, staged: bool) -> str:
    if form == "save":
        return render_save(with_base_chains(desired))
    if form == "canonical":
        return canonical_ruleset(with_base_chains(desired))
    return render_input(plan_sync(desired, SavedTables({}), staged=staged).restore_input)


def _tables(wanted: Mapping[str, Desired]) -> Plain:
    return {
        name: {
            table.name: {chain.name: list(render_chain(chain)) for chain in table.chains.values()}
            for table in with_base_chains(desired).tables.values()
        }
        for name, desired in wanted.items()
    }
