"""What rules become without an optional part, and what is told about it."""

from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.rules.fallbacks import (
    FALLBACKS,
    fallback_notes,
    listed_node_ports,
    missed_parts,
    served_without,
    set_aside_findings,
)
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.selection.node_ports import NodePortEntry
from kproxy_ipt.selection.usable import UsableEndpoints, usable_endpoints
from kproxy_ipt.state.model import Endpoint, MachineFacts, NodeFacts, OptionalPart, ServicePort, ServiceState
from kproxy_ipt.testing.desired import ApiObject, desired_for, rule_lines, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint

_ADDRESSES = ("127.0.0.1", "192.0.2.10", "10.244.1.1", "::1", "2001:db8::10")
_V4 = Family.IPV4


def _machine(*parts: OptionalPart, family: Family = _V4) -> MachineFacts:
    return MachineFacts(interface_addresses=_ADDRESSES, lacking=frozenset((family, part) for part in parts))


def _objects() -> list[ApiObject]:
    """Every kind of Service that a part concerns."""
    sticky = service("sticky", affinity_timeout_s=60)
    web = service(
        "web",
        cluster_ip="10.96.0.11",
        ports=[service_port(80, name="http", node_port=30080), service_port(81, name="s", protocol="SCTP")],
        service_type="NodePort",
        external_policy="Local",
    )
    return [*(sticky, web), *(endpoint_slice(each, ["10.244.1.2", "10.244.1.3"]) for each in (sticky, web))]


@pytest.mark.parametrize(
    ("part", "word"),
    [
        (OptionalPart.NFACCT, "-m nfacct"),
        (OptionalPart.RANDOM_FULLY, "--random-fully"),
        (OptionalPart.RECENT, "-m recent"),
        (OptionalPart.ADDRTYPE, "-m addrtype"),
        (OptionalPart.SCTP, "-m sctp"),
        (OptionalPart.STATISTIC, "-m statistic"),
    ],
)
def test_missing_part_is_in_no_rule_of_its_family_alone(part: OptionalPart, word: str) -> None:
    """With the part the same objects use it; where only IPv6 lacks it, IPv4 still does."""
    without, with_it, other = (
        render_save(desired_for(*_objects(), machine=machine).ruleset)
        for machine in (_machine(part), _machine(), _machine(part, family=Family.IPV6))
    )

    assert word not in without
    assert word in with_it
    assert with_it == other


def test_node_ports_without_addrtype_are_entered_by_every_own_address() -> None:
    """The last rules of KUBE-SERVICES name the addresses of the family, loopback too where it may answer."""
    lines = rule_lines(desired_for(*_objects(), machine=_machine(OptionalPart.ADDRTYPE)), "nat", "KUBE-SERVICES")

    jumps = [line.split(" ")[3] for line in lines if line.endswith("-j KUBE-NODEPORTS")]
    assert jumps == ["10.244.1.1/32", "127.0.0.1/32", "192.0.2.10/32"]


def test_ipv6_node_ports_without_addrtype_leave_loopback_out() -> None:
    """As the negated rule for ::1 does where addrtype is there."""
    web = service(cluster_ip="fd00::1", ports=[service_port(80, node_port=30080)], service_type="NodePort")
    machine = _machine(OptionalPart.ADDRTYPE, family=Family.IPV6)
    desired = desired_for(web, endpoint_slice(web, ["fd01::2"]), family=Family.IPV6, machine=machine)

    lines = rule_lines(desired, "nat", "KUBE-SERVICES")
    assert [line.split(" ")[3] for line in lines if line.endswith("-j KUBE-NODEPORTS")] == ["2001:db8::10/128"]


def test_without_dice_only_chains_of_the_first_endpoint_are_made() -> None:
    """No chain is left that nothing jumps to."""
    web = service()
    desired = desired_for(
        web, endpoint_slice(web, ["10.244.1.2", "10.244.1.3"]), machine=_machine(OptionalPart.STATISTIC)
    )

    chains = desired.ruleset.tables["nat"].chains
    assert len([name for name in chains if name.startswith("KUBE-SEP-")]) == 1


def test_clients_on_the_node_are_told_by_every_own_address_without_addrtype() -> None:
    """Masqueraded and short-cut past policy Local from each of them, as one rule each does with addrtype."""
    desired = desired_for(*_objects(), node(), machine=_machine(OptionalPart.ADDRTYPE))
    (name,) = {name for name, owner in desired.owners.items() if "EXT" in name and owner == "default/web:http"}

    lines = [line.split(" ") for line in rule_lines(desired, "nat", name)]
    assert [(line[3], line[-1][:9]) for line in lines] == [
        *((f"{address}/32", "KUBE-MARK") for address in ("10.244.1.1", "127.0.0.1", "192.0.2.10")),
        *((f"{address}/32", "KUBE-SVC-") for address in ("10.244.1.1", "127.0.0.1", "192.0.2.10")),
    ]


def test_node_ports_without_endpoints_are_refused_at_every_own_address_without_addrtype() -> None:
    """A rule for the port alone would refuse what is forwarded to others."""
    web = service(ports=[service_port(80, node_port=30080)], service_type="NodePort")
    desired = desired_for(web, machine=_machine(OptionalPart.ADDRTYPE))

    lines = rule_lines(desired, "filter", "KUBE-EXTERNAL-SERVICES")
    assert [line.split(" ")[3] for line in lines] == ["10.244.1.1/32", "127.0.0.1/32", "192.0.2.10/32"]
    assert all(" --dport 30080 -j REJECT " in line for line in lines)


def test_hints_count_on_a_machine_that_lacks_a_part() -> None:
    """Of what the Service does not use, the lack of anything changes nothing."""
    web = service()
    behind = endpoint_slice(web, [slice_endpoint(f"10.244.1.{n}", zone_hints=[zone]) for n, zone in enumerate("ab", 1)])
    whole, lacking = (
        desired_for(web, behind, node(zone="a"), machine=_machine(*parts)) for parts in ((), (OptionalPart.RECENT,))
    )

    assert sum("KUBE-SEP" in name for name in whole.owners) == 1
    assert lacking.ruleset == whole.ruleset


@pytest.mark.parametrize(
    ("localhost", "answering", "skipped"),
    [(True, ("127.0.0.1", "192.0.2.10"), ()), (False, ("192.0.2.10",), ("127.0.0.1",))],
)
def test_all_addresses_become_those_that_the_node_has(
    answering: tuple[str, ...], skipped: tuple[str, ...], *, localhost: bool
) -> None:
    """Nothing else about node ports changes: loopback answers as before, or is named as what cannot."""
    entry = NodePortEntry(all_addresses=True, localhost=localhost)

    assert listed_node_ports(entry, ("127.0.0.1", "192.0.2.10")) == NodePortEntry(
        all_addresses=False, addresses=answering, skipped_loopback=skipped, localhost=localhost
    )


def test_chosen_addresses_stay_as_they_are() -> None:
    """Prefixes of the configuration name addresses already."""
    entry = NodePortEntry(all_addresses=False, addresses=("192.0.2.10",), localhost=True)

    assert listed_node_ports(entry, ("127.0.0.1", "192.0.2.10", "192.0.2.11")) == entry


_NODE = NodeFacts(name="node1", zone="a")
_PORT = ServicePort(
    namespace="shop",
    name="web",
    port_name="",
    text="shop/web",
    protocol="tcp",
    family=_V4,
    cluster_ip="10.96.0.1",
    port=80,
)


def _port(**values: object) -> ServicePort:
    return msgspec.structs.replace(_PORT, **values)


def _endpoints(*words: str) -> tuple[Endpoint, ...]:
    """For each of *words* `PLACE HINT`, such as `local a` or `remote`, one that is ready."""
    found = []
    for number, (place, *hints) in enumerate(map(str.split, words), start=1):
        address = f"10.0.0.{number}"
        text = f"{address}:80"
        found.append(Endpoint(address=address, port=80, text=text, is_local=place == "local", zone_hints=tuple(hints)))
    return tuple(found)


@pytest.mark.parametrize("part", list(OptionalPart))
def test_service_that_needs_no_optional_part_is_served_whole(part: OptionalPart) -> None:
    """Its port is not touched, nor are hints and policies of its single usable endpoint."""
    state = ServiceState(_PORT, _endpoints("remote b", "remote a"))
    expected = (_PORT, usable_endpoints(_PORT, state.endpoints, _NODE))

    assert served_without(frozenset({part}), state, _NODE) == expected
    assert not missed_parts(frozenset({part}), [state], _NODE)


def test_affinity_is_all_that_a_service_loses_without_recent() -> None:
    """All endpoints stay, for each policy."""
    sticky = _port(affinity_timeout_s=60, external_local=True, node_port=30080)
    state = ServiceState(sticky, _endpoints("local", "remote", "local"))
    served = served_without(frozenset({OptionalPart.RECENT}), state, _NODE)

    assert served == (
        msgspec.structs.replace(sticky, affinity_timeout_s=0),
        usable_endpoints(sticky, state.endpoints, _NODE),
    )


def test_ports_of_sctp_alone_are_not_served_without_its_match() -> None:
    """They are with it, whatever else is missing."""
    state = ServiceState(_port(protocol="sctp"), _endpoints("remote"))

    assert served_without(frozenset({OptionalPart.SCTP}), state, _NODE) is None
    assert served_without(frozenset({OptionalPart.RECENT}), state, _NODE) is not None


def test_each_policy_keeps_its_first_endpoint_without_dice() -> None:
    """The first of all for policy Cluster, the first of this node for policy Local, a chain for both of them."""
    state = ServiceState(_port(external_local=True, node_port=30080), _endpoints("remote", "local", "local", "remote"))
    first, second, *_ = state.endpoints
    served = served_without(frozenset({OptionalPart.STATISTIC}), state, _NODE)

    assert served == (state.service_port, UsableEndpoints((first,), (second,), (first, second), any_usable=True))


@pytest.mark.parametrize(
    ("part", "port", "endpoints", "is_missed"),
    [
        (OptionalPart.ADDRTYPE, _port(node_port=30080), (), True),
        (OptionalPart.ADDRTYPE, _port(external_local=True, external_ips=("192.0.2.1",)), (), True),
        (OptionalPart.ADDRTYPE, _port(external_ips=("192.0.2.1",)), (), False),
        (OptionalPart.ADDRTYPE, _port(external_local=True), (), False),
        (OptionalPart.STATISTIC, _PORT, ("remote", "remote"), True),
        (OptionalPart.STATISTIC, _port(internal_local=True), ("local", "local"), True),
        (OptionalPart.STATISTIC, _port(internal_local=True), ("local", "remote", "remote"), False),
        (OptionalPart.STATISTIC, _PORT, ("remote a", "remote b"), False),
        (OptionalPart.STATISTIC, _PORT, ("remote a", "remote b", "remote a"), True),
    ],
)
def test_part_is_missed_where_rules_would_use_it(
    part: OptionalPart, port: ServicePort, endpoints: tuple[str, ...], *, is_missed: bool
) -> None:
    """Addrtype for node ports and clients on the node, a dice for two endpoints that one policy may use."""
    state = ServiceState(port, _endpoints(*endpoints))

    assert missed_parts(frozenset({part}), [state], _NODE) == (frozenset({part}) if is_missed else frozenset())


@pytest.mark.parametrize(
    ("count", "ending"),
    [
        (0, ""),
        (2, "; this concerns shop/s0, shop/s1"),
        (5, "; this concerns shop/s0, shop/s1, shop/s2, shop/s3, shop/s4"),
        (7, "; this concerns shop/s0, shop/s1, shop/s2, shop/s3, shop/s4 and 2 more"),
    ],
)
def test_note_tells_what_is_done_and_names_five_services_once_each(count: int, ending: str) -> None:
    """A Service with several such ports counts once, and of many the number is told."""
    ports = [_port(name=f"s{number}", affinity_timeout_s=60, port=port) for number in range(count) for port in (80, 81)]
    lacking = frozenset({OptionalPart.RECENT})

    notes = [*fallback_notes(lacking, [ServiceState(port) for port in ports], _NODE)]
    assert notes == [f"the machine lacks recent: {FALLBACKS[OptionalPart.RECENT].instead}{ending}"]


def test_note_counts_endpoints_that_this_node_may_use() -> None:
    """Hints may leave a single one, which needs no dice."""
    states = [ServiceState(_port(name=name), _endpoints("remote a", f"remote {name}")) for name in "ab"]

    (note,) = fallback_notes(frozenset({OptionalPart.STATISTIC}), states, _NODE)
    assert note.endswith("; this concerns shop/a")


def test_notes_name_services_that_need_the_part_and_no_others() -> None:
    """One line a part, in a fixed order; a part that concerns no single Service names none."""
    snapshot = snapshot_of(*_objects())
    lacking = frozenset({OptionalPart.RECENT, OptionalPart.NFACCT, OptionalPart.SCTP})

    notes = list(fallback_notes(lacking, snapshot.services.values(), snapshot.node))

    assert [note.partition(": ")[0].rpartition(" ")[2] for note in notes] == ["nfacct", "recent", "sctp"]
    assert "concerns" not in notes[0]
    assert notes[1].endswith("; this concerns default/sticky")
    assert notes[2].endswith("; this concerns default/web")


def test_one_endpoint_needs_no_dice() -> None:
    """Only what would be served differently with the part counts as missing it."""
    web = service()
    lacking = frozenset({OptionalPart.STATISTIC})
    one, two = (
        snapshot_of(web, endpoint_slice(web, addresses)) for addresses in (["10.244.1.2"], ["10.244.1.2", "10.244.1.3"])
    )

    assert not missed_parts(lacking, one.services.values(), one.node)
    assert missed_parts(lacking, two.services.values(), two.node) == lacking


def test_only_services_that_are_ours_are_set_aside() -> None:
    """A headless Service of SCTP has no rules anyway; one whose family has the match is served."""
    stream = service("stream", ports=[service_port(protocol="SCTP")])
    headless = service("headless", ports=[service_port(protocol="SCTP")], cluster_ip="None")

    found = [*set_aside_findings([stream, headless], _machine(OptionalPart.SCTP))]

    assert [finding.object for finding in found] == ["Service default/stream"]
    assert not [*set_aside_findings([stream], _machine(OptionalPart.SCTP, family=Family.IPV6))]
    assert not [*set_aside_findings([stream], _machine())]


def test_rejection_names_field_cause_and_families() -> None:
    """Families in which the ports can be served are not named."""
    stream = service("stream", cluster_ips=("10.96.0.10", "fd00::10"), ports=[service_port(protocol="SCTP"), 80])
    lacking = frozenset((family, OptionalPart.SCTP) for family in Family)
    expected = Finding(
        object="Service default/stream",
        field="spec.ports",
        found="protocol SCTP",
        expected="a machine that has the match sctp",
        consequence="ports of this protocol are set aside (IPv4, IPv6)",
        severity=Severity.REJECTED,
    )
    both, one = (
        set_aside_findings([stream], machine)
        for machine in (MachineFacts(lacking=lacking), _machine(OptionalPart.SCTP))
    )

    assert [*both] == [expected]
    assert [finding.consequence for finding in one] == ["ports of this protocol are set aside (IPv4)"]


def test_every_part_has_a_fallback() -> None:
    """A part without words would be missing in silence."""
    assert set(FALLBACKS) == set(OptionalPart)


def test_documentation_has_the_table_of_fallbacks() -> None:
    """Row by row, in the same words."""
    rows = [f"| `{part}` | {fallback.concerns} | {fallback.instead} |" for part, fallback in FALLBACKS.items()]
    page = (Path(__file__).parents[2] / "docs" / "preflight.md").read_text(encoding="utf-8")

    assert [line for line in page.splitlines() if line.startswith("| `")][: len(rows)] == rows
