"""Odd but valid settings are named, and stop nothing."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from kproxy_ipt.config.build import DecodedConfig
from kproxy_ipt.config.model import Scheduler

Decode: TypeAlias = Callable[[str], DecodedConfig]

ODD = {
    "clusterCIDR: 0.0.0.0/0": "no traffic from outside the cluster would ever be masqueraded",
    "clusterCIDR: 10.0.0.0/8,::/0": "clusterCIDR ::/0 counts every client as local",
    "featureGates: {Nonsense: true}": "feature gate Nonsense is unknown",
    "iptables: {syncPeriod: 500ms, minSyncPeriod: 500ms}": "syncPeriod 500ms is very short",
}

NORMAL = (
    "clusterCIDR: 10.0.0.0/8,fd00::/64",
    "detectLocalMode: NodeCIDR\nclusterCIDR: 0.0.0.0/0",
    "featureGates: {AllowServiceExternalIPs: false, WatchListClient: false}",
    "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: abcdefghijklmno}",
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: abcdefghijklmn}",
    "detectLocalMode: NodeCIDR\ndetectLocal: {bridgeInterface: abcdefghijklmnop}",
)


@pytest.mark.parametrize(("fields", "note"), ODD.items())
def test_odd_setting_is_noted(decode: Decode, fields: str, note: str) -> None:
    """One note says what will go wrong."""
    notes = decode(fields).notes

    assert len(notes) == 1
    assert note in notes[0]


@pytest.mark.parametrize("fields", NORMAL)
def test_normal_setting_is_not_noted(decode: Decode, fields: str) -> None:
    """Nothing is said about settings that do what they say."""
    assert decode(fields).notes == ()


@pytest.mark.parametrize(
    ("scheduler", "wanted"), [("rr", Scheduler.RR), ("", Scheduler.RANDOM), ("wlc", Scheduler.RANDOM)]
)
def test_scheduler_of_an_ipvs_file_is_followed_or_named(decode: Decode, scheduler: str, wanted: Scheduler) -> None:
    """Round robin is known here too; of others a note says that they are not."""
    decoded = decode(f'mode: ipvs\nipvs: {{scheduler: "{scheduler}", syncPeriod: 30s, minSyncPeriod: 1s}}')

    assert decoded.config.shape.scheduler is wanted
    assert [note for note in decoded.notes if "scheduler" in note] == (
        ["ipvs.scheduler wlc is unknown here: connections are spread at random"] if scheduler == "wlc" else []
    )


def test_own_scheduler_counts_more_than_that_of_ipvs(decode: Decode) -> None:
    """Who names both knows this program."""
    decoded = decode("mode: ipvs\nipvs: {scheduler: rr}\nkproxyIpt: {scheduler: random}")

    assert decoded.config.shape.scheduler is Scheduler.RANDOM
