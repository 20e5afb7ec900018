"""`explain` with the counts of a kernel beside its shares, and without them where there is none to read."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

Invoke = Callable[..., Result]

_OBSERVED = """\
endpoint          node  cluster    local  observed  since change  connections  slice     reason
10.244.1.13:8080  n1    in 33.3 %  -        70.0 %           105          150  web-ipv4  ready
10.244.1.14:8080  n1    in 33.3 %  -        20.0 %            30            0  web-ipv4  ready
10.244.2.21:8080  n2    in 33.3 %  -        10.0 %            15            0  web-ipv4  ready
3 endpoints of the other family: not for these rules
"""
_SHARES = """\
observed: 150 connections, 0 rejected, 0 dropped since the rules were written
shares: connections do not fit the shares, and no rule says why (by chance alone: less than 0.1 %)
"""


@pytest.fixture
def explain(invoke: Invoke, examples: Path, netns: str) -> Callable[..., Result]:
    """Explain the Service of the examples that was counted: `explain("--no-observed")`."""

    def call(*arguments: str | Path, source: Path = examples) -> Result:
        node = ("--hostname-override", "n1", "--cluster-cidr", "10.244.0.0/16", "--family", "ipv4")
        return invoke("explain", "svc/demo/web", "--from", source, *node, "--netns", netns, *arguments)

    return call


@pytest.mark.kernel
@pytest.mark.usefixtures("counted")
def test_counts_stand_beside_shares(explain: Callable[..., Result]) -> None:
    """With what they mean, in the words of `stats`."""
    found = explain().stdout

    assert _OBSERVED in found
    assert found.endswith(_SHARES)


@pytest.mark.kernel
def test_documents_hold_what_stats_says(
    invoke: Invoke, explain: Callable[..., Result], counted: tuple[str, ...]
) -> None:
    """Number by number, in JSON and in YAML."""
    document = json.loads(explain("-o", "json").stdout)
    stats = json.loads(invoke("stats", "demo/web:http", "--family", "ipv4", "-o", "json", *counted).stdout)

    assert (stats["services"], None) == (document["traffic"], document["traffic_problem"])
    assert yaml.safe_load(explain("-o", "yaml").stdout) == document


@pytest.mark.kernel
@pytest.mark.usefixtures("counted")
def test_rules_that_lag_behind_are_told(explain: Callable[..., Result], examples: Path, tmp_path: Path) -> None:
    """An endpoint that came has no count, one that has gone still gets connections: what to look for at night."""
    changed = tmp_path / "web.yaml"
    changed.write_text((examples / "web.yaml").read_text().replace("10.244.1.14", "10.244.1.77"))
    lines = [" ".join(line.split()) for line in explain(source=changed).stdout.splitlines()]

    assert "10.244.1.77:8080 n1 in 33.3 % - - - - web-ipv4 ready" in lines
    assert "10.244.1.14:8080 - - - 20.0 % 30 0 - only rules of the kernel lead to it" in lines
    assert (
        "rules: not those that these objects ask for: 10.244.1.14:8080 gets 33.3 % by policy Cluster instead of "
        "nothing; 10.244.1.77:8080 gets nothing by policy Cluster instead of 33.3 %; try `kproxy-ipt check`"
    ) == lines[-1]


@pytest.mark.kernel
@pytest.mark.usefixtures("counted")
def test_counts_may_be_left_out(explain: Callable[..., Result]) -> None:
    """The kernel is not even read."""
    ran = explain("--no-observed")

    assert "observed" not in ran.output
    assert [] == json.loads(explain("--no-observed", "-o", "json").stdout)["traffic"]


@pytest.mark.kernel
def test_service_without_rules_is_told_where_counts_were_asked_for(explain: Callable[..., Result]) -> None:
    """An empty kernel is no reason to fail."""
    ran = explain("--observed")

    assert (0, True) == (ran.exit_code, "the kernel has no rule of this service port" in ran.stdout)


def test_kernel_that_cannot_be_read_is_no_failure(explain: Callable[..., Result]) -> None:
    """A namespace that is not there is named; everything else is said all the same."""
    ran = explain("--netns", "no-such-namespace")

    assert 0 == ran.exit_code
    assert "note: nothing observed: there is no network namespace no-such-namespace" in ran.stderr
    assert "balanced over 3 endpoints" in ran.stdout
    document = json.loads(explain("--netns", "no-such-namespace", "-o", "json").stdout)
    assert ([], True) == (document["traffic"], "no-such-namespace" in document["traffic_problem"])


def test_ordinary_users_explain_objects_as_ever(
    invoke: Invoke, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is tried that is not allowed, and nobody is bothered with it."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    subject = ("explain", "svc/demo/web", "--from", examples, "--hostname-override", "n1")

    assert "observed" not in invoke(*subject).output
    document = json.loads(invoke(*subject, "-o", "json").stdout)
    assert "only root may read the rules of the kernel" == document["traffic_problem"]


@pytest.mark.kernel
def test_missing_programs_are_told_to_who_asks(
    program: Callable[..., subprocess.CompletedProcess[str]], examples: Path, tmp_path: Path
) -> None:
    """On a laptop without iptables, say."""
    (tmp_path / "sbin").mkdir()
    subject = ("explain", "svc/demo/web", "--from", examples, "--hostname-override", "n1")
    silent, told = (program(*subject, *words, sbin=tmp_path / "sbin") for words in ((), ("--observed",)))

    assert (0, 0) == (silent.returncode, told.returncode)
    assert "observed" not in silent.stdout + silent.stderr
    assert "note: nothing observed: " in told.stderr
