"""Small questions about what kube-proxy's other modes leave, answered by the real kernel."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.leftovers import (
    delete_nf_table,
    destroy_set,
    has_nf_table,
    link_kind,
    remove_link,
    set_names,
    virtual_service_count,
)
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel


@pytest.fixture
def run() -> Iterator[Callable[..., str]]:
    """Run a program in a namespace that the test itself is in."""
    with temporary_namespace("left") as netns, inside(netns):
        yield lambda *command: subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_table_is_found_and_deleted_with_all_that_it_holds(run: Callable[..., str]) -> None:
    """Chains, maps and rules go with it; the table of the other family and that of inet stay."""
    for family in ("ip", "ip6", "inet"):
        run("nft", f"add table {family} kube-proxy")
    run("nft", "add chain ip kube-proxy services { type nat hook prerouting priority -100; }")
    run("nft", "add rule ip kube-proxy services tcp dport 80 drop")

    assert has_nf_table(Family.IPV4, "kube-proxy")
    assert not has_nf_table(Family.IPV4, "nat")
    delete_nf_table(Family.IPV4, "kube-proxy")
    delete_nf_table(Family.IPV4, "kube-proxy")
    assert run("nft", "list", "tables").splitlines() == ["table ip6 kube-proxy", "table inet kube-proxy"]


def test_sets_are_listed_and_destroyed_by_name(run: Callable[..., str]) -> None:
    """One that a rule asks is refused with a reason; one that is not there is fine."""
    assert set_names() == ()
    for name in ("KUBE-CLUSTER-IP", "KUBE-LOOP-BACK", "MINE"):
        run("ipset", "create", name, "hash:ip")
    run("ipset", "add", "KUBE-CLUSTER-IP", "10.96.0.1")
    run("iptables-nft", "-A", "INPUT", "-m", "set", "--match-set", "KUBE-LOOP-BACK", "src", "-j", "ACCEPT")

    assert sorted(set_names()) == ["KUBE-CLUSTER-IP", "KUBE-LOOP-BACK", "MINE"]
    destroy_set("KUBE-CLUSTER-IP")
    destroy_set("KUBE-CLUSTER-IP")
    with pytest.raises(KernelError, match="the set KUBE-LOOP-BACK cannot be read or removed"):
        destroy_set("KUBE-LOOP-BACK")
    assert sorted(run("ipset", "list", "-n").split()) == ["KUBE-LOOP-BACK", "MINE"]


def test_interface_is_known_by_kind_and_removed_by_name(run: Callable[..., str]) -> None:
    """The loopback has no kind; what is not there has None."""
    run("ip", "link", "add", "kube-ipvs0", "type", "bridge")

    assert ("bridge", "", None) == (link_kind("kube-ipvs0"), link_kind("lo"), link_kind("other0"))
    remove_link("kube-ipvs0")
    remove_link("kube-ipvs0")
    assert link_kind("kube-ipvs0") is None


def test_kernel_without_ipvs_has_no_virtual_services(run: Callable[..., str]) -> None:
    """Whether it lacks the part or holds none, the count is 0; nothing is loaded by asking."""
    assert run("ip", "link")
    assert virtual_service_count() == 0
