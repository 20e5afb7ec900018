"""
Machines that lack something that nothing works without: a match, a target, a program.

The programs are wrapped in scripts that refuse what uses the missing part, in the words of the real programs on such
machines. Expected is always the same: the part, its kernel option and the service port are named, and the tables stay
as they were.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.machine import Target
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt.errors import MissingFeatureError, MissingProgramError, RestoreError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.testing.desired import objects_of
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.objects import endpoint_slice, service

pytestmark = pytest.mark.kernel

_NODE = "node1"
# As the nft programs do where the kernel lacks an extension: the line is that of the rule.
_LACKS = """[ "$1" = --version ] && exec $REAL "$@"
input=$(cat)
line=$(printf '%s\\n' "$input" | grep -n -- '{uses}' | head -1 | cut -d: -f1)
[ -z "$line" ] && {{ printf '%s\\n' "$input" | $REAL "$@"; exit; }}
echo "Warning: Extension {name} revision 0 not supported, missing kernel module?" >&2
echo "iptables-nft-restore: line $line failed" >&2
exit 4
"""
_OLD = """[ "$1" = --version ] && echo "iptables-restore v1.6.1 (nf_tables)" && exit
case "$*" in *-w*) echo "iptables-restore v1.6.1: unknown option -w" >&2; exit 2;; esac
input=$(cat)
line=$(printf '%s\\n' "$input" | grep -n -e --random-fully | head -1 | cut -d: -f1)
[ -z "$line" ] && { printf '%s\\n' "$input" | $REAL "$@"; exit; }
echo "iptables-restore v1.6.1: unknown option \\"--random-fully\\"" >&2
echo "Error occurred at line: $line" >&2
exit 2
"""
_WITHOUT_WORDS = '[ "$1" = --version ] && exec $REAL "$@"\nexit 1'


def _objects() -> Objects:
    """A Service of two endpoints with affinity, which needs most matches, and one that is refused."""
    sticky = service("sticky", namespace="shop", affinity_timeout_s=60)
    empty = service("empty", namespace="shop", cluster_ip="10.96.0.11")
    return objects_of([sticky, empty, endpoint_slice(sticky, ["10.244.1.2", "10.244.1.3"])])


@pytest.fixture
def sync_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RunReport, str]]:
    """Sync IPv4 into an empty namespace with scripts in the place of programs; gives report and saved rules."""

    def sync(**scripts: str) -> tuple[RunReport, str]:
        for word, script in scripts.items():
            name = word.replace("_", "-")
            (tmp_path / name).write_text(f"#!/bin/sh\nREAL=/usr/sbin/{name}\n{script}\n")
            (tmp_path / name).chmod(0o755)
        with temporary_namespace("missing") as netns:
            monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            target = Target(netns=netns, backend="nft", families=(Family.IPV4,))
            report = sync_once(_objects, Config(), _NODE, target)
            with inside(netns):
                saved = subprocess.run(
                    ["/usr/sbin/iptables-nft-save"], capture_output=True, text=True, check=True
                ).stdout
        return report, saved

    return sync


@pytest.mark.parametrize(
    ("name", "uses", "option"),
    [
        ("comment", "-m comment", "CONFIG_NETFILTER_XT_MATCH_COMMENT"),
        ("conntrack", "-m conntrack", "CONFIG_NETFILTER_XT_MATCH_CONNTRACK"),
        ("MASQUERADE", "-j MASQUERADE", "CONFIG_NETFILTER_XT_TARGET_MASQUERADE"),
    ],
)
def test_missing_extension_is_named_with_its_option(
    name: str, uses: str, option: str, sync_with: Callable[..., tuple[RunReport, str]]
) -> None:
    """C88: what is missing for all Services, the kernel option and the rule; nothing stays."""
    report, saved = sync_with(iptables_nft_restore=_LACKS.format(name=name, uses=uses))

    error = report.error
    assert isinstance(error, MissingFeatureError)
    assert isinstance(error, RestoreError)
    assert f"lacks the {'target' if name.isupper() else 'match'} {name} ({option}" in str(error)
    assert uses in error.rule
    assert error.chain in error.rule
    assert error.owner == ""
    assert "KUBE" not in saved


@pytest.mark.parametrize(
    ("name", "uses", "option", "aside"),
    [
        ("DNAT", "-j DNAT", "CONFIG_NETFILTER_XT_NAT", "shop/sticky"),
        ("REJECT", "-j REJECT", "CONFIG_IP_NF_TARGET_REJECT", "shop/empty"),
    ],
)
def test_missing_target_costs_the_services_that_need_it(
    name: str, uses: str, option: str, aside: str, sync_with: Callable[..., tuple[RunReport, str]]
) -> None:
    """C89: they are set aside, each with what is missing and the kernel option; the rest is written."""
    report, saved = sync_with(iptables_nft_restore=_LACKS.format(name=name, uses=uses))
    found = report.families[Family.IPV4].set_aside

    assert report.error is None
    assert [one.service for one in found] == [aside]
    assert f"lacks the target {name} ({option}" in found[0].reason
    assert uses not in saved
    assert "-j KUBE-SERVICES" in saved


def test_refusal_without_a_word_is_told_as_such(sync_with: Callable[..., tuple[RunReport, str]]) -> None:
    """A program that just fails: its exit status, and that it said nothing."""
    report, saved = sync_with(iptables_nft_restore=_WITHOUT_WORDS)

    assert "exit status 1 without a word" in str(report.error)
    assert "KUBE" not in saved


def test_old_program_gets_no_option_that_it_does_not_know(sync_with: Callable[..., tuple[RunReport, str]]) -> None:
    """C114: `--random-fully` and `-w` are left out for a program of 1.6.1, and the load works."""
    report, saved = sync_with(iptables_nft_restore=_OLD)

    assert report.error is None
    assert "-A KUBE-POSTROUTING" in saved
    assert "--random-fully" not in saved


def test_program_that_answers_nothing_is_missing(sync_with: Callable[..., tuple[RunReport, str]]) -> None:
    """A broken program is no program; the message has its own words."""
    broken = 'echo "error while loading shared libraries" >&2; exit 127'
    words = ("iptables_nft_restore", "iptables_restore", "iptables_nft", "iptables", "xtables_nft_multi")

    with pytest.raises(MissingProgramError, match="backend nft"):
        sync_with(**dict.fromkeys(words, broken))
