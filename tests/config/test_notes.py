"""Odd but valid settings are named, and stop nothing."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from kproxy_ipt.config.build import DecodedConfig

Decode: TypeAlias = Callable[[str], DecodedConfig]

ODD = {
    "clusterCIDR: 0.0.0.0/0": "no traffic from outside the cluster would ever be masqueraded",
    "clusterCIDR: 10.0.0.0/8,::/0": "clusterCIDR ::/0 counts every client as local",
    "featureGates: {Nonsense: true}": "feature gate Nonsense is unknown",
    "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: abcdefghijklmnop}": "more than 15 characters",
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: abcdefghijklmno}": "more than 14",
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
