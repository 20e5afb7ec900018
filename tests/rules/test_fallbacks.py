"""What rules become without an optional part, and what is told about it."""

from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.fallbacks import FALLBACKS, fallback_notes, missed_parts, set_aside_findings
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.state.model import MachineFacts, OptionalPart
from kproxy_ipt.testing.desired import ApiObject, desired_for, rule_lines, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port

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


def test_every_part_has_a_fallback() -> None:
    """A part without words would be missing in silence."""
    assert set(FALLBACKS) == set(OptionalPart)


def test_documentation_has_the_table_of_fallbacks() -> None:
    """Row by row, in the same words."""
    rows = [f"| `{part}` | {fallback.concerns} | {fallback.instead} |" for part, fallback in FALLBACKS.items()]
    page = (Path(__file__).parents[2] / "docs" / "preflight.md").read_text(encoding="utf-8")

    assert [line for line in page.splitlines() if line.startswith("| `")][: len(rows)] == rows
