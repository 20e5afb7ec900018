"""Differences between wanted and saved rules: what counts as ours, and whose it is."""

from kproxy_ipt.daemon.check import differences
from kproxy_ipt.rules.build import Desired, with_base_chains
from kproxy_ipt.ruleset.diff import ChainDifference, DifferenceKind
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.ruleset.scan import scan_save
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port


def _desired() -> Desired:
    """Two Services with node ports, one of them without endpoints."""
    ports = [[service_port(80, name="http", node_port=number)] for number in (30080, 30081)]
    web = service("web", namespace="shop", service_type="NodePort", ports=ports[0])
    empty = service("empty", namespace="shop", service_type="NodePort", ports=ports[1], cluster_ip="10.96.0.11")
    return desired_for(web, empty, endpoint_slice(web))


def _found(damage: str = "", instead: str = "") -> tuple[ChainDifference, ...]:
    desired = _desired()
    save = render_save(with_base_chains(desired))
    assert damage in save
    return tuple(differences(desired, scan_save(save.replace(damage, instead) if damage else save)))


def _lines(word: str) -> str:
    return "".join(f"{line}\n" for line in render_save(with_base_chains(_desired())).splitlines() if word in line)


def test_own_save_text_has_no_difference() -> None:
    """What we would write is what we look for."""
    assert _found() == ()


def test_rule_of_a_dispatch_chain_belongs_to_the_service_that_it_leads_to() -> None:
    """The chain knows no service, its rules do."""
    (difference,) = _found(_lines("-A KUBE-SERVICES -d 10.96.0.10/32"))

    assert (difference.chain, difference.owner, len(difference.missing)) == ("KUBE-SERVICES", "shop/web:http", 1)


def test_rule_that_refuses_belongs_to_the_service_of_its_comment() -> None:
    """A REJECT rule leads to no chain."""
    (difference,) = _found(_lines("-A KUBE-SERVICES -d 10.96.0.11/32"))

    assert (difference.table, difference.owner) == ("filter", "shop/empty:http")


def test_chain_of_a_service_has_its_owner() -> None:
    """Also where the chain is gone."""
    desired = _desired()
    names = set(desired.owners)
    found = tuple(differences(desired, scan_save("")))

    assert {difference.chain for difference in found if difference.owner == "shop/web:http"} >= names
    assert {difference.kind for difference in found if difference.chain in names} == {DifferenceKind.MISSING_CHAIN}


def test_missing_jumps_are_one_difference_for_each_chain() -> None:
    """INPUT of the table filter has several of ours."""
    jumps = _lines("-A INPUT ")
    (difference,) = _found(jumps)

    assert (difference.table, difference.chain, difference.owner) == ("filter", "INPUT", "")
    assert "".join(f"{line}\n" for line in sorted(difference.missing)) == "".join(
        sorted(jumps.splitlines(keepends=True))
    )
    assert jumps.count("\n") > 1


def test_many_owners_are_cut_short() -> None:
    """A flushed dispatch chain names three services, and how many more."""
    services = [service(f"s{n}", namespace="shop", cluster_ip=f"10.96.1.{n}") for n in range(1, 7)]
    desired = desired_for(*services, *(endpoint_slice(one) for one in services))
    save = render_save(with_base_chains(desired))
    lines = [line for line in save.splitlines() if not line.startswith("-A KUBE-SERVICES ")]
    found = tuple(differences(desired, scan_save("".join(f"{line}\n" for line in lines))))

    assert [difference.owner for difference in found] == ["shop/s1, shop/s2, shop/s3 and 3 more"]


def test_rules_of_the_kubelet_are_not_ours_to_judge() -> None:
    """In KUBE-FIREWALL only what is missing of ours counts."""
    guard = _lines("-A KUBE-FIREWALL ")
    kubelet = "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n"
    assert guard.count("\n") == 1

    assert _found(guard, kubelet + guard) == ()
    (difference,) = _found(guard, kubelet)
    assert (difference.missing, difference.extra) == ((guard.strip(),), ())
