"""`kproxy-ipt explain`."""

import difflib
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click
import msgspec

from kproxy_ipt.addresses import Family, canonical_address, family_of
from kproxy_ipt.config.model import Dispatch
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.node import node_notes, own_node
from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.model import Objects, Service
from kproxy_ipt.objects.report import object_text
from kproxy_ipt.rules.build import build_ruleset
from kproxy_ipt.selection.reasons import Reason
from kproxy_ipt.state.model import MachineFacts, Snapshot
from kproxy_ipt.state.snapshot import take_snapshot
from kproxy_ipt.stats.model import ServiceTraffic
from kproxy_ipt.trace.branches import part_of_dispatch
from kproxy_ipt.trace.chain_owner import FIXED_CHAIN_MEANINGS, ChainOwner, chain_owners
from kproxy_ipt.trace.explain_service import explain_service
from kproxy_ipt.trace.explain_slices import slices_of
from kproxy_ipt.trace.explanation import EndpointRow, Entry, PortExplanation, ServiceExplanation
from kproxy_ipt_cli._exit_codes import ExitCode
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._observed import CountColumns, Observed, observe, print_summary
from kproxy_ipt_cli._options import (
    Request,
    family_option,
    flag_options,
    interface_addresses_of,
    netns_option,
    node_address_option,
    output_option,
    request_of,
    source_options,
    target_of,
)
from kproxy_ipt_cli._output import (
    PERCENT,
    TEXT,
    plain,
    print_document,
    print_findings,
    print_notes,
    print_table,
    rejected,
)
from kproxy_ipt_cli._reports import findings_document

_KINDS = {"svc": "service", "service": "service", "services": "service", "chain": "chain", "endpoint": "endpoint"}


class _Scene(msgspec.Struct, frozen=True):
    """Everything that explanations are made from."""

    request: Request
    objects: Objects
    snapshots: Mapping[Family, Snapshot]
    machine: MachineFacts
    observed: Observed
    output: str


@click.command(name="explain", short_help="Say what was decided about a Service, a chain or an endpoint, and why.")
@click.argument("subject", metavar="svc/NAMESPACE/NAME|chain/NAME|endpoint/IP")
@source_options
@family_option
@netns_option
@click.option(
    "--observed/--no-observed",
    default=None,
    help="Whether counts of the kernel stand beside the shares of a Service. Default: for root, where it has rules.",
)
@node_address_option
@flag_options
@output_option
@failing
def command(
    *,
    subject: str,
    paths: tuple[str, ...],
    context: str,
    family: str,
    netns: str | None,
    observed: bool | None,
    node_addresses: tuple[str, ...],
    output: str,
    **flags: tuple[str, ...],
) -> None:
    """
    Explain the rules of one node: every address of a Service, its chain, and every endpoint, in or out with the reason.

    The namespace may be left out where only one Service has the name. Where the kernel can be read, the connections
    that its rules counted stand beside the shares of a Service; nothing else comes from the kernel.

    \b
    Examples:
      kproxy-ipt explain svc/shop/web --from manifests/ --hostname-override n1
      kproxy-ipt explain chain/KUBE-SVC-XRY76EGRC3BSCIIJ --kubeconfig ~/.kube/config
      kproxy-ipt explain endpoint/10.244.1.13 --from manifests/ --output json
    """
    kind, _, name = subject.partition("/")
    if subject.startswith("KUBE-"):
        kind, name = "chain", subject
    if kind not in _KINDS or not name:
        raise click.UsageError("say svc/NAMESPACE/NAME, chain/NAME or endpoint/IP")
    target = target_of(netns=netns, backend="auto", family=family, lock_wait=5)
    seen = observe(target, wanted=observed if _KINDS[kind] == "service" else False)
    scene = _scene(request_of(paths, context, flags), target, seen, node_addresses, output)
    explain = {"service": _explain_service, "chain": _explain_chain, "endpoint": _explain_endpoint}[_KINDS[kind]]
    explain(scene, name)


def _scene(
    request: Request, target: Target, observed: Observed, node_addresses: tuple[str, ...], output: str
) -> _Scene:
    objects = request.read_objects()
    node = own_node(objects, request.config, request.node_name)
    families = target.families
    if observed.problem and observed.is_asked_for:
        print_notes((f"nothing observed: {observed.problem}",))
    print_notes((*request.config_notes, *node_notes(objects, request.config, node, frozenset(families))))
    machine = MachineFacts(interface_addresses=interface_addresses_of(request.config, node_addresses, target.netns))
    snapshots = {one: take_snapshot(objects, one, node) for one in families}
    return _Scene(request, objects, snapshots, machine, observed, output)


def _explain(scene: _Scene, service: Service) -> ServiceExplanation:
    return explain_service(service, scene.objects, scene.snapshots, scene.request.config, scene.machine)


# Services


def _explain_service(scene: _Scene, name: str) -> None:
    service = _find_service(scene, name)
    explanation = _explain(scene, service)
    findings = _findings_about(scene.objects, service)
    print_findings(findings)
    if scene.output != TEXT:
        document = {"command": "explain", **findings_document(findings), "explanation": plain(explanation)}
        print_document({**document, **scene.observed.document(explanation.ports)}, scene.output)
        return
    click.secho(f"Service {explanation.service}, type {explanation.type}, on node {_node_text(explanation)}", bold=True)
    if explanation.reason:
        click.echo(f"no rules: {explanation.sentence}")
    for out in explanation.families_out:
        click.echo(out.sentence)
    for port in explanation.ports:
        _print_port(port, scene.observed)


def _node_text(explanation: ServiceExplanation) -> str:
    return f"{explanation.node} ({f'zone {explanation.zone}' if explanation.zone else 'no zone'})"


def _find_service(scene: _Scene, name: str) -> Service:
    namespace, _, short = name.rpartition("/")
    found = [
        service
        for service in scene.objects.services
        if service.metadata.name == short and (not namespace or service.metadata.namespace == namespace)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"svc/{service.metadata.namespace}/{short}" for service in found)
        raise click.UsageError(f"several Services are called {short}: {names}")
    return _end_without_service(scene, name, namespace, short)


def _end_without_service(scene: _Scene, name: str, namespace: str, short: str) -> NoReturn:
    """The Service was set aside, or nobody knows it."""
    wanted = object_text("Service", namespace or None, short)
    findings = [one for one in rejected(scene.objects.findings) if one.object == wanted]
    if findings:
        print_findings(findings)
        if scene.output != TEXT:
            print_document({"command": "explain", **findings_document(findings), "explanation": None}, scene.output)
        raise SystemExit(int(ExitCode.OBJECTS_REJECTED))
    known = [f"{service.metadata.namespace}/{service.metadata.name}" for service in scene.objects.services]
    close = ", ".join(f"svc/{one}" for one in difflib.get_close_matches(name, known))
    raise click.UsageError(f"no Service is called {name}" + (f"; did you mean {close}?" if close else ""))


def _findings_about(objects: Objects, service: Service) -> tuple[Finding, ...]:
    """What was odd about the Service itself and its slices when they were read."""
    namespace = service.metadata.namespace
    slices = slices_of(service, objects.endpoint_slices, objects.services)
    subjects = {object_text("EndpointSlice", namespace, one.metadata.name) for one in slices}
    subjects.add(object_text("Service", namespace, service.metadata.name))
    return tuple(one for one in objects.findings if one.object in subjects)


def _print_port(port: PortExplanation, observed: Observed) -> None:
    click.echo()
    click.secho(f"{port.text} {port.family.api_name} {port.port}/{port.protocol}", bold=True)
    click.echo(f"chains: {', '.join(port.chains) or 'none'}")
    click.echo(f"topology {port.topology.sentence}")
    if port.balancing:
        click.echo(f"balancing: {port.balancing}")
    if port.affinity:
        click.echo(f"affinity: {port.affinity.sentence}")
    if port.source_ranges:
        click.echo(f"source ranges: {port.source_ranges.sentence}")
    if port.health_check:
        click.echo(f"health check: {port.health_check}")
    click.echo()
    print_table(("entry", "address", "port", "policy", "chain", "what happens"), map(_entry_row, port.entries))
    for entry in port.entries:
        for line in entry.notes:
            click.echo(f"  {entry.kind} {entry.address}: {line}")
    click.echo()
    traffic = observed.traffic(port)
    _print_endpoints(port, traffic)
    print_summary(port, traffic, observed)


def _print_endpoints(port: PortExplanation, traffic: ServiceTraffic | None) -> None:
    counts = CountColumns(traffic)
    rows = [_with_counts(_endpoint_row(row), counts.cells(row.text)) for row in port.shown_endpoints]
    known = {row.text for row in port.endpoints}
    others = [one.endpoint for one in traffic.endpoints if one.endpoint not in known] if traffic else []
    rows += [_with_counts((one, *_ONLY_IN_RULES), counts.cells(one)) for one in others]
    if rows:
        print_table(_with_counts(_ENDPOINT_COLUMNS, counts.names), rows, unit=PERCENT)
    else:
        click.echo("no endpoints: no slice of this Service has any")
    if port.hidden_words:
        click.echo(port.hidden_words)


def _with_counts(cells: tuple[str, ...], counts: tuple[str, ...]) -> tuple[str, ...]:
    """*counts* between the shares and the reason."""
    return (*cells[:_SHARES_END], *counts, *cells[_SHARES_END:])


def _entry_row(entry: Entry) -> tuple[str, ...]:
    return (entry.kind, entry.address, str(entry.port), entry.policy or "-", entry.chain or "-", entry.sentence)


_ENDPOINT_COLUMNS = ("endpoint", "node", "cluster", "local", "slice", "reason")
_SHARES_END = _ENDPOINT_COLUMNS.index("slice")
_ONLY_IN_RULES = ("-", "-", "-", "-", "only rules of the kernel lead to it")


def _endpoint_row(row: EndpointRow) -> tuple[str, ...]:
    return (
        row.text or "-",
        row.node or "-",
        _in_or_out(row.cluster, row.cluster_share),
        _in_or_out(row.local, row.local_share),
        row.slice or "-",
        _reason_text(row),
    )


def _in_or_out(reason: Reason | None, share: float) -> str:
    """`in 33.3 %`, `out`, or a dash where the policy is never used."""
    if reason is None:
        return "-"
    return f"in {100 * share:.1f}".removesuffix(".0") + " %" if reason.is_in else "out"


def _reason_text(row: EndpointRow) -> str:
    """One reason where both policies have the same, else each with its policy."""
    reasons = {word: reason for word, reason in (("cluster", row.cluster), ("local", row.local)) if reason}
    if len(set(reasons.values())) == 1:
        text = next(iter(reasons.values())).value
    else:
        text = ", ".join(f"{word}: {reason.value}" for word, reason in reasons.items())
    return f"{text} ({row.detail})" if row.detail else text


# Chains


def _explain_chain(scene: _Scene, name: str) -> None:
    owners = chain_owners(name, scene.snapshots, scene.request.config.shape)
    meaning = FIXED_CHAIN_MEANINGS.get(name, "") or ("" if owners else _dispatch_meaning(scene, name))
    if not owners and not meaning:
        raise click.UsageError(f"no service port of these objects has a chain {name}: its Service may be gone")
    if scene.output != TEXT:
        owned = [plain(owner) for owner in owners]
        print_document({"command": "explain", "chain": name, "meaning": meaning, "owners": owned}, scene.output)
    elif meaning:
        click.echo(f"{name}: {meaning}")
    else:
        print_table(
            ("service port", "protocol", "family", "endpoint", "stands", "what it does"), map(_owner_row, owners)
        )


def _dispatch_meaning(scene: _Scene, name: str) -> str:
    """What a part of a dispatch tree holds, whether the present objects are enough for a tree or not."""
    shape = msgspec.structs.replace(scene.request.config.shape, dispatch=Dispatch.TREE)
    config = msgspec.structs.replace(scene.request.config, shape=shape)
    rulesets = (build_ruleset(snapshot, config, scene.machine).ruleset for snapshot in scene.snapshots.values())
    parts = (part_of_dispatch(ruleset, name) for ruleset in rulesets)
    return next((f"a part of the way to the chains of Services: {part}" for part in parts if part), "")


def _owner_row(owner: ChainOwner) -> tuple[str, ...]:
    stands = "yes" if owner.stands else "no"
    return (owner.service_port, owner.protocol, owner.family, owner.endpoint or "-", stands, owner.meaning)


# Endpoints


def _explain_endpoint(scene: _Scene, name: str) -> None:
    address, port = _address_and_port(name)
    found = [
        (one, row)
        for service in _services_behind(scene.objects, address)
        for one in _explain(scene, service).ports
        for row in one.endpoints
        if row.address == address and (not port or row.text.endswith(f":{port}"))
    ]
    # A dual-stack Service has rules of both families: those that cannot know the address say so only if none does.
    rows = [(one, row) for one, row in found if one.family is family_of(address)] or found
    if scene.output != TEXT:
        behind = [
            {"service_port": one.text, "protocol": one.protocol, "family": one.family, "endpoint": plain(row)}
            for one, row in rows
        ]
        print_document({"command": "explain", "address": address, "behind": behind}, scene.output)
    elif rows:
        columns = ("service port", "protocol", *_ENDPOINT_COLUMNS, "chain")
        print_table(columns, ((one.text, one.protocol, *_endpoint_row(row), row.chain or "-") for one, row in rows))
    else:
        click.echo(f"{name} is behind no Service")


def _address_and_port(name: str) -> tuple[str, str]:
    """`10.0.0.1`, `10.0.0.1:80`, `fd00::1`, `[fd00::1]:80`."""
    head, _, tail = name.rpartition(":")
    for text, port in ((name.strip("[]"), ""), (head.strip("[]"), tail)):
        address = canonical_address(text)
        if address:
            return address, port
    raise click.UsageError(f"{name!r} is not an IP address, nor one with a port")


def _services_behind(objects: Objects, address: str) -> Sequence[Service]:
    """The Services of namespaces in which a slice names *address*: the explanation finds those that have it."""
    namespaces = {
        endpoint_slice.metadata.namespace
        for endpoint_slice in objects.endpoint_slices
        for endpoint in endpoint_slice.endpoints or ()
        if any(canonical_address(text) == address for text in endpoint.addresses or ())
    }
    return [service for service in objects.services if service.metadata.namespace in namespaces]
