"""`preflight` from the command line: what it prints, and its exit codes."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from kproxy_ipt.testing.shims import Shims

pytestmark = pytest.mark.kernel

Invoke = Callable[..., Result]
Program = Callable[..., subprocess.CompletedProcess[str]]
_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")


@pytest.fixture
def lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the nft restore program of IPv4 lack an extension."""
    shims = Shims(tmp_path / "shims")

    def lack(extension: str) -> None:
        shims.install("iptables-nft-restore")
        shims.lack("iptables-nft-restore", extension)
        monkeypatch.setenv("PATH", f"{shims.folder}:/usr/sbin:/usr/bin:/sbin:/bin")

    return lack


def test_machine_that_has_everything_is_0(invoke: Invoke, netns: str) -> None:
    """Programs, a row for each form, settings, and a last line that says so."""
    ran = invoke("preflight", "--netns", netns)

    lines = ran.stdout.splitlines()
    assert ran.exit_code == 0
    assert lines[-1] == "everything is there"
    assert any(line.split()[:3] == ["match", "recent", "yes"] for line in lines)
    assert any(line.startswith("net.netfilter.nf_conntrack_max ") for line in lines)
    assert " NO " not in ran.stdout


@pytest.mark.parametrize("extension", ["nfacct", "--random-fully", "recent", "addrtype", "sctp", "statistic"])
def test_missing_part_is_1_and_says_what_is_done_instead(
    invoke: Invoke, netns: str, lacking: Callable[[str], None], extension: str
) -> None:
    """A cell of the table, and three lines: what is missing and why, whom it concerns, what they get."""
    lacking(extension)
    ran = invoke("preflight", "--netns", netns, "--backend", "nft")

    assert ran.exit_code == 1
    assert "no, replaced" in ran.stdout
    gap = next(line for line in ran.stdout.splitlines() if line.startswith("ipv4 nft lacks "))
    assert extension in gap
    assert "\n  concerns: " in ran.stdout
    assert "\n  instead: " in ran.stdout
    assert "ipv6 nft lacks" not in ran.stdout


def test_machine_that_cannot_work_is_2(invoke: Invoke, netns: str, lacking: Callable[[str], None]) -> None:
    """Without conntrack nothing works, and nothing replaces it."""
    lacking("conntrack")
    ran = invoke("preflight", "--netns", netns, "--family", "ipv4")

    assert ran.exit_code == 2
    assert "  instead: nothing can replace it\n" in ran.stdout
    assert ran.stdout.endswith("it cannot work here: see above\n")


@pytest.mark.parametrize("arguments", [("--netns", "there-is-none"), ()])
def test_what_cannot_be_told_is_2(program: Program, arguments: tuple[str, ...]) -> None:
    """A namespace that does not exist; a user who may neither read tables nor make namespaces."""
    ran = program("preflight", *arguments, prefix=() if arguments else _NOBODY)

    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_documents_hold_verdict_trials_and_settings(
    invoke: Invoke,
    netns: str,
    lacking: Callable[[str], None],
    output: str,
    read: Callable[[str], Mapping[str, object]],
) -> None:
    """For programs the same facts, whole; the exit code is in it as well."""
    lacking("recent")
    ran = invoke("preflight", "--netns", netns, "--family", "ipv4", "--output", output)
    document = read(ran.stdout)

    assert (ran.exit_code, document["exit_code"], document["verdict"]) == (1, 1, "reduced")
    trials = document["trials"]
    assert isinstance(trials, list)
    gaps = [result for trial in trials for result in trial["results"] if not result["is_there"]]
    assert [(gap["part"], gap["option"]) for gap in gaps] == [("recent", "CONFIG_NETFILTER_XT_MATCH_RECENT")]
    assert {"kernel", "backend", "reason", "plain", "in_use", "conflict", "settings", "untried"} <= set(document)


def test_sync_ends_well_where_preflight_says_1(
    invoke: Invoke, lab: tuple[str, ...], lacking: Callable[[str], None]
) -> None:
    """The fallback that preflight names is what sync does, and check agrees; the note names it."""
    lacking("statistic")
    synced, checked = invoke("sync", "--once", *lab), invoke("check", *lab)

    assert (synced.exit_code, checked.exit_code) == (0, 0)
    assert "note: the machine lacks statistic: ALL THEIR CONNECTIONS GO TO THE FIRST ENDPOINT" in synced.stderr
    assert "demo/web" in synced.stderr


def test_plain_program_of_the_other_backend_is_told(
    invoke: Invoke, netns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who types `iptables` there would not see our rules."""
    for name in ("iptables-restore", "ip6tables-restore"):
        (tmp_path / name).symlink_to("/usr/sbin/xtables-legacy-multi")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin")
    ran = invoke("preflight", "--netns", netns, "--backend", "nft")

    assert ran.exit_code == 0
    assert "note: the program iptables is the legacy one: it does not show rules of nft\n" in ran.stderr
