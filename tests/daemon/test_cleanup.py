"""Clean-up with the real kernel: what is looked at, and what must not come into being."""

from collections.abc import Callable

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.cleanup import clean_up
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.xtables_proc import legacy_tables
from kproxy_ipt.testing.desired import objects_of
from kproxy_ipt.testing.objects import endpoint_slice, service

pytestmark = pytest.mark.kernel

Look = Callable[..., str]


def _sync(target: Target) -> None:
    objects = objects_of([service("web"), endpoint_slice("web")])
    assert sync_once(lambda: objects, Config(), "node1", target).error is None


def test_looking_creates_no_legacy_tables(target: Target) -> None:
    """The legacy programs make tables by asking for them, so they are not asked where there are none."""
    _sync(target)
    reports = clean_up(msgspec.structs.replace(target, backend="auto"))

    assert [report.backend for report in reports] == ["nft"]
    with inside(target.netns):
        assert [legacy_tables(family) for family in Family] == [(), ()]


def test_pinned_backend_is_the_only_one(target: Target, look: Look) -> None:
    """Rules of the other backend stay."""
    legacy = msgspec.structs.replace(target, backend="legacy")
    _sync(target)
    _sync(legacy)
    reports = clean_up(legacy)

    assert [report.backend for report in reports] == ["legacy"]
    assert "KUBE" not in look("iptables-legacy-save")
    assert "KUBE-SVC" in look("iptables-nft-save")


def test_second_clean_up_runs_nothing(target: Target) -> None:
    """There is nothing left to plan."""
    _sync(target)
    first, second = clean_up(target), clean_up(target)

    assert all(report.transactions > 0 for report in first[0].families.values())
    assert all(report.transactions == 0 for report in second[0].families.values())


def test_table_that_somebody_else_made_stays(target: Target, look: Look) -> None:
    """An empty table that was there before the first sync is there after the clean-up."""
    look("iptables-nft", "-t", "nat", "-L")
    before = look("nft", "list", "ruleset")
    _sync(target)
    clean_up(target)

    assert look("nft", "list", "ruleset") == before
