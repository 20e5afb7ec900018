"""Restoring with the real programs of both backends: what is applied, what is refused, how it is told."""

import fcntl
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kproxy_ipt.errors import (
    KernelError,
    LockTimeoutError,
    MissingFeatureError,
    MissingPrivilegeError,
    RestoreError,
    RestoreFeatureError,
)
from kproxy_ipt.kernel.command import Completed, SubprocessRunner
from kproxy_ipt.kernel.iptables import Iptables

pytestmark = pytest.mark.kernel

_TARGETS = "*nat\n:A - [0:0]\n:B - [0:0]\nCOMMIT\n"
_REFUSED = (
    "*nat\n:C - [0:0]\nCOMMIT\n*nat\n:D - [0:0]\n-A D -j B\n-A D {rule}\n-A D -j A\nCOMMIT\n*nat\n:E - [0:0]\nCOMMIT\n"
)
_BAD_LINE = 7
_COMMIT_LINE = 9

WithScript = Callable[[Iptables, str], Iptables]


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


def test_empty_input_runs_nothing(iptables: Iptables, with_script: WithScript, tmp_path: Path) -> None:
    """Nothing changed: no program is started."""
    script = with_script(iptables, f"touch {tmp_path}/ran")

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


def test_lock_that_is_released_in_time_is_waited_for(
    legacy: Iptables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is part of the seconds of the outcome."""
    patient, lock = Iptables(SubprocessRunner(), legacy.programs, 60), tmp_path / "lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    with subprocess.Popen(["flock", lock, "sh", "-c", "echo held; exec sleep 1.5"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        outcome = patient.restore(_TARGETS)

    assert outcome.seconds > 0.2
    assert _chains(patient) == {"A", "B"}


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
    nft: Iptables, with_script: WithScript, stderr: str, error: type[KernelError], message: str
) -> None:
    """A missing table, a read-only lock file, no memory: not the fault of any rule."""
    script = with_script(nft, f"cat > /dev/null; cat >&2 <<'END'\n{stderr}\nEND\nexit 4")

    with pytest.raises(error, match=message) as caught:
        script.restore(_TARGETS)

    assert not isinstance(caught.value, RestoreError)


def test_program_that_dies_is_told_with_its_signal(nft: Iptables, with_script: WithScript) -> None:
    """Restoring and saving alike."""
    script = with_script(nft, "kill -SEGV $$")

    with pytest.raises(KernelError, match="ended by signal 11"):
        script.restore(_TARGETS)
    with pytest.raises(KernelError, match="ended by signal 11 while listing"):
        script.start_save(("nat",)).text()
