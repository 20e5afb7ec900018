"""One sync with the real kernel: what stops it, what does not, and what it sets besides rules."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, ConntrackConfig, DetectLocalMode, IptablesConfig
from kproxy_ipt.daemon.check import check
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.daemon.sync import Stopwatch, sync_once
from kproxy_ipt.errors import ConfigError, RestoreError, SourceError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nfacct import read_counters
from kproxy_ipt.kernel.sysctls import read_sysctl, write_sysctl
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.rules.options import NFACCT_COUNTERS
from kproxy_ipt.testing.desired import objects_of
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port

pytestmark = pytest.mark.kernel

Look = Callable[..., str]
Shim = Callable[[str, str], None]

_FAILS = '[ "$1" = --version ] && exec $REAL "$@"\necho "$0: line 2 failed" >&2\nexit 1'
_ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"


def _objects() -> Objects:
    web = service("web", service_type="NodePort", ports=[service_port(node_port=30080)])
    six = service("six", cluster_ip="fd00:10:96::6")
    return objects_of([web, six, endpoint_slice(web), endpoint_slice(six, ["fd00:10:244::6"]), node()])


def _sync(target: Target, config: Config | None = None, *, dry_run: bool = False) -> RunReport:
    return sync_once(_objects, config or Config(), "node1", target, dry_run=dry_run)


def _fail() -> Objects:
    raise SourceError("the cluster is down")


def test_objects_that_cannot_be_read_leave_the_kernel_untouched(target: Target, look: Look) -> None:
    """An error of the source is not an empty cluster."""
    _sync(target)
    before = look("nft", "list", "ruleset")

    with pytest.raises(SourceError, match="the cluster is down"):
        sync_once(_fail, Config(), "node1", target)
    assert look("nft", "list", "ruleset") == before


def test_configuration_that_does_not_fit_the_node_leaves_the_kernel_untouched(target: Target, look: Look) -> None:
    """Neither rules nor settings nor accounting objects are made."""
    config = Config(detect_local_mode=DetectLocalMode.NODE_CIDR, conntrack=ConntrackConfig(tcp_be_liberal=True))

    with pytest.raises(ConfigError):
        sync_once(_objects, config, "unknown", target)
    assert look("nft", "list", "ruleset") == ""
    with inside(target.netns):
        assert (read_sysctl(_LIBERAL), dict(read_counters(NFACCT_COUNTERS))) == ("0", {})


@pytest.mark.parametrize(("word", "failing", "other"), [("ip6tables", "ipv6", "ipv4"), ("iptables", "ipv4", "ipv6")])
def test_family_that_fails_does_not_stop_the_other(
    word: str, failing: str, other: str, target: Target, shim: Shim, look: Look
) -> None:
    """The report has the error of one and the numbers of the other, whose rules stand."""
    shim(f"{word}-nft-restore", _FAILS)
    report = _sync(target)

    assert isinstance(report.families[Family(failing)].error, RestoreError)
    assert report.families[Family(other)].transactions > 0
    assert report.error is report.families[Family(failing)].error
    saves = {"ipv4": look("iptables-nft-save"), "ipv6": look("ip6tables-nft-save")}
    assert "KUBE-SVC" in saves[other]
    assert "KUBE" not in saves[failing]


def test_listing_that_fails_is_never_an_empty_kernel(target: Target, shim: Shim, look: Look) -> None:
    """C82: nothing is planned on a broken listing; the other family goes on."""
    _sync(target)
    before = look("iptables-nft-save")
    shim("iptables-nft-save", 'echo "*nat"; exit 0')
    report = _sync(target)

    assert "cut off" in str(report.families[Family.IPV4].error)
    assert report.families[Family.IPV6].error is None
    assert _rules(look("/usr/sbin/iptables-nft-save")) == _rules(before)


def _rules(save: str) -> list[str]:
    return [line for line in save.splitlines() if line.startswith("-A")]


def test_accounting_objects_are_made_by_a_sync_alone(target: Target) -> None:
    """A dry run and a check look only; a sync makes them before its rules use them."""
    found = []
    for run in (
        lambda: _sync(target, dry_run=True),
        lambda: check(_objects, Config(), "node1", target),
        lambda: _sync(target),
    ):
        assert run().error is None
        with inside(target.netns):
            found.append(set(read_counters(NFACCT_COUNTERS)))

    assert found == [set(), set(), set(NFACCT_COUNTERS)]


def test_route_localnet_is_set_only_after_the_rules_stand(target: Target, shim: Shim, tmp_path: Path) -> None:
    """While the guard is not there yet, neighbours could reach what listens on 127.0.0.1 (C29)."""
    seen = tmp_path / "seen"
    script = f'case "$*" in *--noflush*) cat /proc/sys/{_ROUTE_LOCALNET} >> {seen};; esac\nexec $REAL "$@"'
    shim("iptables-nft-restore", script)
    _sync(target)

    with inside(target.netns):
        assert (seen.read_text().split(), read_sysctl(_ROUTE_LOCALNET)) == (["0"], "1")


def test_route_localnet_stays_where_rules_were_refused(target: Target, shim: Shim) -> None:
    """Without the guard there is no opening."""
    shim("iptables-nft-restore", _FAILS)
    _sync(target)

    with inside(target.netns):
        assert read_sysctl(_ROUTE_LOCALNET) == "0"


@pytest.mark.parametrize(
    ("config", "families"),
    [
        (Config(iptables=IptablesConfig(localhost_node_ports=False)), tuple(Family)),
        (Config(node_port_addresses=("192.0.2.0/24",)), tuple(Family)),
        (Config(), (Family.IPV6,)),
    ],
)
def test_route_localnet_is_not_set_where_nothing_needs_it(
    config: Config, families: Iterable[Family], target: Target
) -> None:
    """Node ports are not open on localhost, or IPv4 is not served."""
    report = _sync(Target(netns=target.netns, backend="nft", families=tuple(families)), config)

    assert report.error is None
    with inside(target.netns):
        assert read_sysctl(_ROUTE_LOCALNET) == "0"


def test_liberal_conntrack_is_set_by_a_sync_alone(target: Target, look: Look) -> None:
    """With tcpBeLiberal the setting is made and no rule drops INVALID packets; a dry run does not make it."""
    config = Config(conntrack=ConntrackConfig(tcp_be_liberal=True))
    settings = []
    for dry_run in (True, False):
        assert _sync(target, config, dry_run=dry_run).error is None
        with inside(target.netns):
            settings.append(read_sysctl(_LIBERAL))

    assert settings == ["0", "1"]
    assert "INVALID" not in look("iptables-nft-save")


def test_liberal_conntrack_that_somebody_else_set_counts(target: Target, look: Look) -> None:
    """C112: the rule depends on the kernel, not on who set it."""
    with inside(target.netns):
        write_sysctl(_LIBERAL, "1")
    _sync(target)

    assert "INVALID" not in look("iptables-nft-save")


def test_stopwatch_counts_by_phase() -> None:
    """Phases add up, `total` is the time since the start."""
    ticks = iter([0.0, 1.0, 3.0, 4.0, 5.0, 10.0])
    watch = Stopwatch(lambda: next(ticks))
    for _ in range(2):
        with watch.phase("plan"):
            pass

    assert watch.total() == {"plan": 3.0, "total": 10.0}
