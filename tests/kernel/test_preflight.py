"""What preflight finds out on the real kernel, whole or with something missing, and that it leaves nothing behind."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import BackendWish
from kproxy_ipt.errors import MissingProgramError
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import current_namespace_id, inside, scratch
from kproxy_ipt.kernel.preflight import Fitness, FormResult, PreflightReport, preflight
from kproxy_ipt.kernel.preflight_forms import rule_forms
from kproxy_ipt.kernel.preflight_probe import lacking_parts
from kproxy_ipt.kernel.programs import Backend, installed_programs
from kproxy_ipt.rules.fallbacks import FALLBACKS
from kproxy_ipt.ruleset.matches import OpaqueMatch, PortMatch
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.targets import OpaqueTarget
from kproxy_ipt.state.model import OptionalPart
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.shims import Shims

pytestmark = pytest.mark.kernel

_GOLDEN = Path(__file__).parents[1] / "golden"
_BOTH = tuple(Family)
_LACKS = {
    "nfacct": OptionalPart.NFACCT,
    "--random-fully": OptionalPart.RANDOM_FULLY,
    "recent": OptionalPart.RECENT,
    "addrtype": OptionalPart.ADDRTYPE,
    "sctp": OptionalPart.SCTP,
    "statistic": OptionalPart.STATISTIC,
}
_TABLE = "*nat\n:THEIRS - [0:0]\n-A THEIRS -s 192.0.2.1/32 -j RETURN\nCOMMIT\n"
_ASK = """
from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.preflight_probe import lacking_parts
from kproxy_ipt.kernel.programs import Backend, installed_programs
found = installed_programs(SubprocessRunner(), [Family.IPV4])[Family.IPV4]
print(sorted(lacking_parts(SubprocessRunner(), [found.programs[Backend(BACKEND)]])))
"""


@pytest.fixture
def netns() -> Iterator[str]:
    """A namespace to ask about."""
    with temporary_namespace("preflight") as name:
        yield name


@pytest.fixture
def shims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shims:
    """Scripts in the place of all restore programs, first in PATH."""
    made = Shims(tmp_path / "shims")
    made.install(*(f"{word}-{backend}-restore" for word in ("iptables", "ip6tables") for backend in Backend))
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    return made


def _preflight(netns: str, families: tuple[Family, ...] = _BOTH, backend: BackendWish = "auto") -> PreflightReport:
    with inside(netns):
        return preflight(SubprocessRunner(), backend, families)


def _everything(netns: str) -> tuple[str, ...]:
    """All tables of a namespace: of nf_tables as nft prints them, and the legacy ones that exist, with their rules."""
    script = (
        "nft list ruleset; for word in ip ip6; do cat /proc/self/net/${word}_tables_names; done;"
        " [ -z $(head -1 /proc/self/net/ip_tables_names) ] || iptables-legacy-save | grep -v '^#'"
    )
    ran = subprocess.run(
        ["ip", "netns", "exec", netns, "sh", "-c", script], capture_output=True, text=True, check=False
    )
    return tuple(ran.stdout.splitlines())


def test_this_kernel_has_everything_on_both_backends(netns: str) -> None:
    """Every form on both backends and families, in the order of the table; the verdict is about nft."""
    report = _preflight(netns)

    assert (report.fitness, report.backend) == (Fitness.COMPLETE, Backend.NFT)
    assert {(trial.backend, trial.family) for trial in report.trials} == {
        (backend, family) for backend in Backend for family in _BOTH
    }
    for trial in report.trials:
        assert [result.name for result in trial.results] == [form.name for form in rule_forms(trial.family)]
        assert [result for result in trial.results if not result.is_there] == []
        assert Path(trial.program).exists()


@pytest.mark.parametrize("backend", ["nft", "legacy"])
@pytest.mark.parametrize("is_filled", [False, True])
def test_namespace_that_was_asked_about_stays_as_it_was(netns: str, backend: BackendWish, *, is_filled: bool) -> None:
    """Neither an empty namespace nor one with rules of somebody else has anything more, or less, afterwards."""
    if is_filled:
        with inside(netns):
            SubprocessRunner().run([f"iptables-{backend}-restore"], stdin=_TABLE)
    before = _everything(netns)
    _preflight(netns, backend=backend)
    _preflight(netns)

    assert _everything(netns) == before
    assert bool(before) is is_filled


def test_forms_cover_what_rules_use() -> None:
    """Every match and target of the golden rules of both families is part of a form, and so is the rotation of `rr`."""
    for family, name in ((Family.IPV4, "iptables"), (Family.IPV6, "ip6tables")):
        tried = {kind for form in rule_forms(family) for rule in form.rules for kind in _kinds(rule)}
        used: set[str] = set()
        for file in _GOLDEN.glob(f"*/{name}.txt"):
            tables = parse_save(file.read_text(), family).tables.values()
            rules = (rule for table in tables for chain in table.chains.values() for rule in chain.rules)
            used.update(kind for rule in rules for kind in _kinds(rule))

        assert len(used) > 10
        assert used | {"StatisticNth"} <= tried


def _kinds(rule: Rule) -> set[str]:
    """What a rule needs of kernel and program, by class; ports by protocol."""
    found = {
        f"{type(match).__name__} {match.protocol if isinstance(match, PortMatch) else ''}".strip()
        for match in rule.matches
    }
    assert not any(isinstance(match, OpaqueMatch) for match in rule.matches)
    assert not isinstance(rule.target, OpaqueTarget)
    return found | ({type(rule.target).__name__} if rule.target and type(rule.target).__name__ != "Jump" else set())


@pytest.mark.parametrize("extension", _LACKS)
@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_missing_part_is_named_with_price_and_fallback(
    netns: str, shims: Shims, backend: BackendWish, extension: str
) -> None:
    """Only the family that lacks it, only its forms; option, reason, who is concerned, what is done instead."""
    shims.lack(f"ip6tables-{backend}-restore", extension)
    report = _preflight(netns, backend=backend)
    gaps = {(trial.family, gap.part): gap for trial in report.trials for gap in trial.results if not gap.is_there}

    part = _LACKS[extension]
    assert set(gaps) == {(Family.IPV6, part)}
    gap = gaps[(Family.IPV6, part)]
    assert (gap.concerns, gap.instead) == (FALLBACKS[part].concerns, FALLBACKS[part].instead)
    assert extension in gap.reason
    assert gap.option.startswith("CONFIG_NETFILTER_XT_")
    assert report.fitness is Fitness.REDUCED


def _gaps(report: PreflightReport) -> list[FormResult]:
    return [result for trial in report.trials for result in trial.results if not result.is_there]


@pytest.mark.parametrize("extension", ["comment", "conntrack", "mark", "MARK", "DNAT", "MASQUERADE", "REJECT"])
def test_machine_without_what_all_rules_need_is_unfit(netns: str, shims: Shims, extension: str) -> None:
    """Nothing can replace it, and the verdict says so."""
    shims.lack("iptables-nft-restore", extension)
    report = _preflight(netns, (Family.IPV4,), "nft")

    assert report.fitness is Fitness.UNFIT
    assert any(gap.part is None and extension in gap.name and not gap.instead for gap in _gaps(report))


def test_backend_that_is_not_used_does_not_decide(netns: str, shims: Shims) -> None:
    """A gap of the legacy programs is shown, and costs nothing while nft is used."""
    shims.lack("iptables-legacy-restore", "comment")
    report = _preflight(netns)

    assert report.fitness is Fitness.COMPLETE
    assert [gap.name for gap in _gaps(report)] == ["match comment"]


@pytest.mark.parametrize("how", ["exit 4", "kill -9 $$"])
def test_machine_that_takes_nothing_cannot_be_judged(netns: str, shims: Shims, how: str) -> None:
    """No form is called missing where all are refused; the verdict is that it cannot work."""
    shims.act("iptables-nft-restore", f'[ "$1" = --version ] || {how}')
    report = _preflight(netns, (Family.IPV4,), "nft")

    assert (report.fitness, _gaps(report)) == (Fitness.UNFIT, [])
    assert report.trials[0].problem


def test_family_that_is_switched_off_leaves_the_other(netns: str) -> None:
    """With IPv6 off the verdict is `reduced`; asked about IPv6 alone it cannot work, about IPv4 alone all is there."""
    with inside(netns):
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")

    verdicts = [_preflight(netns, families, "nft").fitness for families in (_BOTH, (Family.IPV6,), (Family.IPV4,))]

    assert verdicts == [Fitness.REDUCED, Fitness.UNFIT, Fitness.COMPLETE]


def test_rules_in_both_backends_are_told(netns: str) -> None:
    """Who has rules where, and that both see each packet."""
    with inside(netns):
        for backend in Backend:
            SubprocessRunner().run([f"iptables-{backend}-restore"], stdin=_TABLE)
    report = _preflight(netns)

    assert {(one.backend, one.family): one.rules for one in report.in_use} == {
        (backend, family): int(family is Family.IPV4) for backend in Backend for family in _BOTH
    }
    assert report.conflict == "IPv4 has rules in both backends: 1 in nft and 1 in legacy"


def test_settings_are_those_of_the_namespace(netns: str) -> None:
    """Forwarding is off in a new namespace, which is doubtful; switched on it is not."""
    with inside(netns):
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
    before = {one.name: one for one in _preflight(netns).settings}
    with inside(netns):
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    after = {one.name: one for one in _preflight(netns).settings}

    assert before["net.ipv4.ip_forward"].doubt
    assert (after["net.ipv4.ip_forward"].value, after["net.ipv4.ip_forward"].doubt) == ("1", "")
    assert int(after["net.netfilter.nf_conntrack_max"].value) > 0


def test_backend_without_programs_is_an_error(netns: str, shims: Shims, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned backend that is not installed cannot be tried."""
    empty = shims.folder / "empty"
    empty.mkdir()
    for word in ("iptables", "ip6tables"):
        for suffix in ("-nft-restore", "-restore"):
            (shims.folder / f"{word}{suffix}").write_text("#!/bin/sh\nexit 127\n")
            (shims.folder / f"{word}{suffix}").chmod(0o755)
    (shims.folder / "xtables-nft-multi").write_text("#!/bin/sh\nexit 127\n")
    (shims.folder / "xtables-nft-multi").chmod(0o755)
    for word in ("iptables", "ip6tables", "iptables-nft", "ip6tables-nft"):
        (shims.folder / word).write_text("#!/bin/sh\nexit 127\n")
        (shims.folder / word).chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims.folder}:{os.environ['PATH']}")

    with pytest.raises(MissingProgramError, match="backend nft is pinned"):
        _preflight(netns, backend="nft")


def test_scratch_namespace_is_another_one_and_is_left_again(netns: str) -> None:
    """Inside it is new and empty, afterwards the thread is where it was, also after an error."""
    with inside(netns):
        home, seen = current_namespace_id(), list[str]()
        with pytest.raises(ZeroDivisionError):
            _fail_in_scratch(seen)

        assert current_namespace_id() == home
    assert seen[0] != home
    assert _everything(netns) == ()


def _fail_in_scratch(seen: list[str]) -> None:
    """Write something in a scratch namespace, note which it was, and fail there."""
    with scratch():
        seen.append(current_namespace_id())
        SubprocessRunner().run(["iptables-nft-restore"], stdin=_TABLE)
        raise ZeroDivisionError


def test_optional_parts_cost_one_run_for_each_family(shims: Shims) -> None:
    """Where all is there, nothing more is asked."""
    found = installed_programs(SubprocessRunner(), _BOTH)
    asked = shims.calls("iptables-nft-restore", "ip6tables-nft-restore")
    lacking = lacking_parts(SubprocessRunner(), [one.programs[Backend.NFT] for one in found.values()])

    assert lacking == frozenset()
    assert shims.calls("iptables-nft-restore", "ip6tables-nft-restore") == asked + 2


@pytest.mark.parametrize("backend", list(Backend))
def test_without_leave_to_make_namespaces_rules_are_only_read(
    netns: str, shims: Shims, backend: Backend, run_without_sys_admin: Callable[[str, str], str]
) -> None:
    """The part is missed all the same, and nothing is written to the tables of the namespace."""
    shims.lack(f"iptables-{backend}-restore", "recent")
    printed = run_without_sys_admin(netns, _ASK.replace("BACKEND", repr(str(backend))))

    assert "<OptionalPart.RECENT: 'recent'>" in printed
    assert printed.count("OptionalPart") == 1
    assert shims.calls(f"iptables-{backend}-restore", among="--test")
    assert not any("KUBE" in line for line in _everything(netns))


@pytest.fixture
def run_without_sys_admin() -> Callable[[str, str], str]:
    """Run some Python in a namespace as root without CAP_SYS_ADMIN; gives what it prints."""

    def run(netns: str, code: str) -> str:
        command = ["ip", "netns", "exec", netns, "setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", code]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run
