"""Saving and restoring with the real programs of both backends: what is applied, what is refused, how it is told."""

import fcntl
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import (
    KernelError,
    LockTimeoutError,
    MissingFeatureError,
    MissingPrivilegeError,
    RestoreError,
    RestoreFeatureError,
)
from kproxy_ipt.kernel.backend import Backend, Programs
from kproxy_ipt.kernel.command import Completed, SubprocessRunner
from kproxy_ipt.kernel.iptables import Iptables
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.programs import installed_programs
from kproxy_ipt.kernel.xtables_proc import legacy_tables
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

_TARGETS = "*nat\n:A - [0:0]\n:B - [0:0]\nCOMMIT\n"
_REFUSED = (
    "*nat\n:C - [0:0]\nCOMMIT\n*nat\n:D - [0:0]\n-A D -j B\n-A D {rule}\n-A D -j A\nCOMMIT\n*nat\n:E - [0:0]\nCOMMIT\n"
)
_BAD_LINE = 7
_COMMIT_LINE = 9


@pytest.fixture(autouse=True)
def namespace() -> Iterator[str]:
    """Each test has tables of its own."""
    with temporary_namespace("ipt") as name, inside(name):
        yield name


def _programs(backend: Backend) -> Programs:
    return installed_programs(SubprocessRunner(), (Family.IPV4,))[Family.IPV4].programs[backend]


@pytest.fixture(params=list(Backend))
def iptables(request: pytest.FixtureRequest) -> Iptables:
    """The programs of each backend in turn."""
    return Iptables(SubprocessRunner(), _programs(request.param), 1)


@pytest.fixture
def legacy() -> Iptables:
    """The programs of the legacy backend, which wait one second for the lock."""
    return Iptables(SubprocessRunner(), _programs(Backend.LEGACY), 1)


@pytest.fixture
def nft() -> Iptables:
    """The programs of the nft backend."""
    return Iptables(SubprocessRunner(), _programs(Backend.NFT), 1)


def _with_script(iptables: Iptables, folder: Path, script: str) -> Iptables:
    """The same programs, but saving and restoring is done by a script; the real programs are `$SAVE` and `$RESTORE`."""
    path = folder / "program"
    real = f"SAVE={iptables.programs.save[0]} RESTORE={iptables.programs.restore[0]}"
    path.write_text(f"#!/bin/sh\n{real}\n{script}\n")
    path.chmod(0o755)
    programs = iptables.programs
    return Iptables(
        SubprocessRunner(),
        Programs(
            programs.backend, programs.family, programs.command, (str(path),), (str(path),), programs.version, "script"
        ),
        1,
    )


def _chains(iptables: Iptables) -> set[str]:
    text = iptables.start_save(("nat",)).text()
    return {line[1:].split()[0] for line in text.splitlines() if line.startswith(":") and " - " in line}


def test_all_sections_are_applied_and_counted(iptables: Iptables) -> None:
    """Two tables in one input are two transactions; the outcome tells their number and the size of the input."""
    text = "*nat\n:A - [0:0]\n-A A -j RETURN\nCOMMIT\n*filter\n:F - [0:0]\nCOMMIT\n"

    outcome = iptables.restore(text)

    assert (outcome.transactions, outcome.bytes) == (2, len(text))
    assert "-A A -j RETURN\n" in iptables.start_save(("nat",)).text()


def test_sections_that_are_made_one_by_one_are_applied_and_counted(iptables: Iptables) -> None:
    """The outcome is that of the whole text."""
    sections = ('*nat\n:A - [0:0]\n-A A -m comment --comment "ä"\nCOMMIT\n', "*filter\n:F - [0:0]\nCOMMIT\n")

    outcome = iptables.restore_sections(lambda: sections)

    assert (outcome.transactions, outcome.bytes) == (2, len("".join(sections).encode()))
    assert _chains(iptables) == {"A"}


def test_refused_section_is_told_as_a_refused_text_is(iptables: Iptables) -> None:
    """Line numbers count through all sections; the one with the bad rule and those after it leave nothing behind."""
    iptables.restore(_TARGETS)
    sections = _REFUSED.format(rule="-j NOPE").split("COMMIT\n")[:-1]

    with pytest.raises(RestoreError) as caught:
        iptables.restore_sections(lambda: (f"{section}COMMIT\n" for section in sections), owner_of=lambda chain: chain)

    error = caught.value
    assert (error.line, error.rule, error.chain, error.owner) == (_BAD_LINE, "-A D -j NOPE", "D", "D")
    assert error.committed == 1
    assert _chains(iptables) == {"A", "B", "C"}


def test_empty_input_runs_nothing(iptables: Iptables, tmp_path: Path) -> None:
    """Nothing changed: no program is started."""
    script = _with_script(iptables, tmp_path, f"touch {tmp_path}/ran")

    assert script.restore("").transactions == 0
    assert script.restore_sections(lambda: ()).transactions == 0
    assert not (tmp_path / "ran").exists()


def test_testing_applies_nothing(iptables: Iptables) -> None:
    """`--test` reads the input and leaves the kernel alone; errors of syntax are found."""
    iptables.test("*nat\n:A - [0:0]\nCOMMIT\n")

    assert _chains(iptables) == set()
    with pytest.raises(RestoreError, match="unknown option"):
        iptables.test("*nat\n:A - [0:0]\n-A A --bogus\nCOMMIT\n")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("-j NOPE", "the chain NOPE does not exist"),
        ("-g KUBE-SVC-NOPE", "the chain KUBE-SVC-NOPE does not exist"),
        ("--bogus", 'unknown option "--bogus"'),
        ("-d 1.2.3.400", "host/network `1.2.3.400' not found"),
        ("-j DNAT --to-destination 1.2.3.4:5", "Need TCP, UDP, SCTP or DCCP with port specification"),
    ],
)
def test_refused_rule_is_told_with_line_chain_and_owner(iptables: Iptables, rule: str, message: str) -> None:
    """The line of the input, the rule, its chain and its service port are named, whatever line the program prints."""
    iptables.restore(_TARGETS)

    with pytest.raises(RestoreError) as caught:
        iptables.restore(_REFUSED.format(rule=rule), owner_of={"D": "shop/web:http"}.__getitem__)

    error = caught.value
    assert (error.line, error.rule, error.chain) == (_BAD_LINE, f"-A D {rule}", "D")
    assert (error.message, error.owner, error.committed) == (message, "shop/web:http", 1)


def test_sections_before_the_refused_one_stay_and_none_after_it_is_tried(iptables: Iptables) -> None:
    """The section with the bad rule leaves no chain behind; `committed` counts those before it."""
    iptables.restore(_TARGETS)

    with pytest.raises(RestoreError) as caught:
        iptables.restore(_REFUSED.format(rule="-j NOPE"))

    assert caught.value.committed == 1
    assert _chains(iptables) == {"A", "B", "C"}


def test_what_the_nft_kernel_refuses_is_told_with_its_rule(nft: Iptables) -> None:
    """REJECT is impossible in nat; the kernel's own words come with the rule."""
    nft.restore(_TARGETS)

    with pytest.raises(RestoreError, match="RULE_APPEND failed \\(Invalid argument\\)") as caught:
        nft.restore(_REFUSED.format(rule="-p tcp -j REJECT"))

    assert (caught.value.line, caught.value.chain, caught.value.committed) == (_BAD_LINE, "D", 1)


def test_what_the_legacy_kernel_refuses_is_told_with_the_line_of_its_commit(legacy: Iptables) -> None:
    """The program gives no reason and no rule: the section is known, and no service is accused."""
    legacy.restore(_TARGETS)

    with pytest.raises(RestoreError, match="without a reason") as caught:
        legacy.restore(_REFUSED.format(rule="-p tcp -j REJECT"), owner_of=lambda chain: chain)

    error = caught.value
    assert (error.line, error.rule, error.chain, error.owner, error.committed) == (_COMMIT_LINE, "", "", "", 1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("-m foomatch -j A", "the iptables program lacks the match foomatch (CONFIG_NETFILTER_XT_MATCH_FOOMATCH)"),
        ("-m ipvs --ipvs -j A", "the kernel lacks the match ipvs (CONFIG_NETFILTER_XT_MATCH_IPVS)"),
        ("-j LED --led-trigger-id x", "the kernel lacks the target LED (CONFIG_NETFILTER_XT_TARGET_LED)"),
        (
            "-m nfacct --nfacct-name absent",
            "the accounting object absent does not exist (CONFIG_NETFILTER_XT_MATCH_NFACCT)",
        ),
    ],
)
def test_missing_feature_is_named_with_its_kernel_option_and_its_rule(
    iptables: Iptables, rule: str, message: str
) -> None:
    """The rule that needs it is found on both backends, though legacy only names the line of the COMMIT."""
    iptables.restore(_TARGETS)

    with pytest.raises(RestoreFeatureError) as caught:
        iptables.restore(_REFUSED.format(rule=rule), owner_of=lambda chain: f"owner of {chain}")

    error = caught.value
    assert isinstance(error, MissingFeatureError)
    assert (error.message, error.line, error.chain, error.owner) == (message, _BAD_LINE, "D", "owner of D")


def test_words_in_comments_are_no_matches(iptables: Iptables) -> None:
    """A comment that reads like a rule is not taken for the culprit."""
    comment = '-m comment --comment "x -j NOPE -m foomatch" -j RETURN'
    text = f"*nat\n:D - [0:0]\n-A D {comment}\n-A D -j NOPE\nCOMMIT\n"

    with pytest.raises(RestoreError) as caught:
        iptables.restore(text)

    assert caught.value.line == 4


@pytest.mark.parametrize("line", ["-A NOBODY -j RETURN", "-X NOBODY", "-D OUTPUT -j RETURN"])
def test_edit_of_what_is_not_there_is_told_with_its_line(iptables: Iptables, line: str) -> None:
    """Appending to, deleting from and deleting what is missing is refused at that line."""
    with pytest.raises(RestoreError) as caught:
        iptables.restore(f"*nat\n:A - [0:0]\n{line}\nCOMMIT\n")

    assert (caught.value.line, caught.value.rule) == (3, line)


def test_chain_name_that_is_too_long_is_told_with_its_line(iptables: Iptables) -> None:
    """A chain line can be refused as well; the chain is named."""
    name = "K" * 40
    with pytest.raises(RestoreError) as caught:
        iptables.restore(f"*nat\n:{name} - [0:0]\nCOMMIT\n")

    assert (caught.value.line, caught.value.chain) == (2, name)


def test_held_lock_is_a_lock_timeout_and_nothing_is_written(
    legacy: Iptables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program keeps the lock for longer than we wait."""
    lock = tmp_path / "lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LockTimeoutError, match="another program holds the xtables lock"):
            legacy.restore(_TARGETS)

    assert _chains(legacy) == set()


def test_lock_that_is_released_in_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is part of the seconds of the outcome."""
    legacy, lock = Iptables(SubprocessRunner(), _programs(Backend.LEGACY), 60), tmp_path / "lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    with subprocess.Popen(["flock", lock, "sh", "-c", "echo held; exec sleep 1.5"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        outcome = legacy.restore(_TARGETS)

    assert outcome.seconds > 0.2
    assert _chains(legacy) == {"A", "B"}


class Unprivileged(SubprocessRunner):
    """Runs each program as nobody."""

    def run(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = 60.0) -> Completed:
        """See `Runner.run`."""
        nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all"]
        return super().run([*nobody, *arguments], stdin=stdin, timeout_s=timeout_s)


def test_missing_privilege_is_told(iptables: Iptables) -> None:
    """Both backends: as nobody, root or the capability is asked for."""
    iptables.restore(_TARGETS)

    with pytest.raises(MissingPrivilegeError, match="root or CAP_NET_ADMIN is needed"):
        Iptables(Unprivileged(), iptables.programs, 1).restore(_TARGETS)


@pytest.mark.parametrize(
    ("stderr", "error", "message"),
    [
        ("x: can't initialize iptables table `nat': Table does not exist", MissingFeatureError, "no nat table"),
        (
            "x v1.8.9 (nf_tables): Could not fetch rule set generation id: Invalid argument",
            MissingFeatureError,
            "nf_tables",
        ),
        ("Fatal: can't open lock file /run/xtables.lock: Read-only file system", MissingPrivilegeError, "Read-only"),
        ("x: line 3: RULE_APPEND failed (Cannot allocate memory): rule in chain D", KernelError, "allocate memory"),
    ],
)
def test_trouble_of_the_machine_accuses_no_line(
    nft: Iptables, tmp_path: Path, stderr: str, error: type[KernelError], message: str
) -> None:
    """A missing table, a read-only lock file, no memory: not the fault of any rule."""
    script = _with_script(nft, tmp_path, f"cat > /dev/null; cat >&2 <<'END'\n{stderr}\nEND\nexit 4")

    with pytest.raises(error, match=message) as caught:
        script.restore(_TARGETS)

    assert not isinstance(caught.value, RestoreError)


def test_program_that_dies_is_told_with_its_signal(nft: Iptables, tmp_path: Path) -> None:
    """Restoring and saving alike."""
    script = _with_script(nft, tmp_path, "kill -SEGV $$")

    with pytest.raises(KernelError, match="ended by signal 11"):
        script.restore(_TARGETS)
    with pytest.raises(KernelError, match="ended by signal 11 while listing"):
        script.start_save(("nat",)).text()


def test_save_shows_the_wanted_tables_only(iptables: Iptables) -> None:
    """Of three tables two are asked for; a table that does not exist is passed over."""
    iptables.restore("*nat\n:A - [0:0]\nCOMMIT\n*filter\n:F - [0:0]\nCOMMIT\n*mangle\n:M - [0:0]\nCOMMIT\n")

    text = iptables.start_save(("nat", "filter", "raw")).text()

    assert sorted(line for line in text.splitlines() if line.startswith("*")) == ["*filter", "*nat"]
    assert ":M " not in text


@pytest.mark.parametrize("tables", [None, ("nat",), ("nat", "filter")])
def test_saving_creates_nothing(iptables: Iptables, tables: tuple[str, ...] | None) -> None:
    """In an empty namespace a listing has no rules, and no table exists afterwards."""
    assert "-A " not in iptables.start_save(tables).text()

    assert legacy_tables(Family.IPV4) == ()
    assert SubprocessRunner().run(["nft", "list", "ruleset"]).stdout == ""


@pytest.mark.parametrize("cut", ["head -c 120", "grep -v ^COMMIT", "head -n -1"])
def test_listing_that_is_cut_off_is_an_error(nft: Iptables, tmp_path: Path, cut: str) -> None:
    """Never an empty or shorter listing, even if the program claims success."""
    nft.restore(_TARGETS)
    script = _with_script(nft, tmp_path, f'$SAVE "$@" | {cut}')

    with pytest.raises(KernelError, match="cut off"):
        script.start_save(("nat",)).text()


def test_table_that_cannot_be_shown_is_an_error(nft: Iptables) -> None:
    """Foreign rules in our table hide all of it: the listing is broken, not empty."""
    nft.restore(_TARGETS)
    runner = SubprocessRunner()
    assert (
        runner.run(["nft", "add", "rule", "ip", "nat", "A", "numgen", "inc", "mod", "2", "0", "accept"]).exit_status
        == 0
    )

    with pytest.raises(KernelError, match="cannot show the table nat"):
        nft.start_save(("nat", "filter")).text()


def test_foreign_table_that_cannot_be_shown_is_a_warning(nft: Iptables) -> None:
    """Tables that nobody asked for do not matter, but are told."""
    nft.restore("*nat\n:A - [0:0]\nCOMMIT\n*mangle\n:M - [0:0]\nCOMMIT\n")
    runner = SubprocessRunner()
    runner.run(["nft", "add", "rule", "ip", "mangle", "M", "numgen", "inc", "mod", "2", "0", "accept"])
    save = nft.start_save(("nat", "filter"))

    assert ":A - [0:0]" in save.text()
    assert save.warnings == ("Table `mangle' is incompatible, use 'nft' tool.",)


def test_legacy_tables_beside_nft_are_a_warning(nft: Iptables, legacy: Iptables) -> None:
    """The program's remark about the other backend is passed on."""
    legacy.restore(_TARGETS)
    save = nft.start_save(("nat",))
    save.text()

    assert save.warnings == ("Warning: iptables-legacy tables present, use iptables-legacy-save to see them",)


def test_tables_are_listed_one_by_one_where_all_together_fails(nft: Iptables, tmp_path: Path) -> None:
    """A foreign table that breaks the program does not hide ours."""
    nft.restore(_TARGETS)
    script = _with_script(nft, tmp_path, '[ "$1" = -t ] || kill -SEGV $$\nexec $SAVE "$@"')
    save = script.start_save(("nat", "filter"))

    assert ":A - [0:0]" in save.text()
    assert "cannot list all tables together" in save.warnings[0]


def test_failing_save_is_told_with_the_name_of_the_program(nft: Iptables, tmp_path: Path) -> None:
    """The error names the program, its exit status and its words."""
    script = _with_script(nft, tmp_path, "echo 'unknown expression' >&2; exit 1")

    with pytest.raises(
        KernelError, match=r"program failed while listing the tables \(exit status 1\): unknown expression"
    ):
        script.start_save(("nat", "filter")).text()
