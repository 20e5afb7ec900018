"""What is looked at before a lab is made."""

import os
from pathlib import Path

import pytest

from kproxy_ipt.errors import ConfigError, MissingPrivilegeError, MissingProgramError
from kproxy_ipt.lab import lifecycle
from kproxy_ipt.lab.layout import layout_of


def test_ordinary_users_are_told_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sudo, and without it in namespaces of their own."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(MissingPrivilegeError, match=r"sudo kproxy-ipt lab up.*unshare --map-root-user"):
        lifecycle.up(layout_of("never"), port=0, progress=print)


def test_missing_programs_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each package once."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(lifecycle, "_SYSTEM_PATH", str(tmp_path))

    with pytest.raises(MissingProgramError, match="the programs of iproute2 and iptables; please"):
        lifecycle.up(layout_of("never"), port=0, progress=print)


@pytest.mark.parametrize("name", ["", "Lab", "1lab", "a-b", "../etc", "averylongname"])
def test_names_that_cannot_be_folders_and_namespaces_are_refused(name: str) -> None:
    """A name is part of paths and of names of namespaces."""
    with pytest.raises(ConfigError, match="is no name of a lab"):
        layout_of(name)
