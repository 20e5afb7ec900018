"""Choosing the backend from evidence, pinning it, and finding out which families work."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import MissingFeatureError, MissingProgramError
from kproxy_ipt.kernel.backend import Backend, BackendChoice, choose_backend, features
from kproxy_ipt.kernel.command import Completed, Running, SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.sysctls import write_sysctl
from kproxy_ipt.kernel.xtables_proc import legacy_tables
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

_BOTH = (Family.IPV4, Family.IPV6)
_OURS = "*nat\n:KUBE-SERVICES - [0:0]\n-A {chain} -j KUBE-SERVICES\nCOMMIT\n"
_HINT = "*mangle\n:{chain} - [0:0]\nCOMMIT\n"
_MANY = "*filter\n" + "-A OUTPUT -j ACCEPT\n" * 60 + "COMMIT\n"


class Without(SubprocessRunner):
    """The real runner on a machine where some programs are not installed."""

    def __init__(self, is_missing: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_missing = is_missing

    def run(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = 60.0) -> Completed:
        """See `Runner.run`."""
        self._look(arguments)
        return super().run(arguments, stdin=stdin, timeout_s=timeout_s)

    def start(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = 60.0) -> Running:
        """See `Runner.start`."""
        self._look(arguments)
        return super().start(arguments, stdin=stdin, timeout_s=timeout_s)

    def _look(self, arguments: Sequence[str]) -> None:
        if self._is_missing(arguments[0]):
            raise MissingProgramError(arguments[0])


@pytest.fixture(autouse=True)
def namespace() -> Iterator[str]:
    """Each test has tables of its own."""
    with temporary_namespace("back") as name, inside(name):
        yield name


def _load(program: str, text: str) -> None:
    completed = SubprocessRunner().run([f"{program}-restore", "--noflush"], stdin=text)
    assert completed.exit_status == 0, completed.stderr


def _auto(families: Sequence[Family] = _BOTH) -> BackendChoice:
    return choose_backend(SubprocessRunner(), "auto", families)


def test_without_evidence_the_plain_program_decides_and_nothing_is_created() -> None:
    """In an empty namespace the choice is that of `iptables`, and the namespace stays empty."""
    choice = _auto()

    assert choice.backend is Backend.NFT
    assert choice.reason == "no rules speak for a backend, and the program iptables is the nft one"
    assert SubprocessRunner().run(["nft", "list", "ruleset"]).stdout == ""
    assert legacy_tables(Family.IPV4) == legacy_tables(Family.IPV6) == ()


@pytest.mark.parametrize("hint", ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"])
@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("word", ["iptables", "ip6tables"])
def test_hint_chain_of_kubelet_decides(word: str, backend: Backend, hint: str) -> None:
    """The backend that kubelet writes to is taken, whichever family the hint is in."""
    _load(f"{word}-{backend}", _HINT.format(chain=hint))

    choice = _auto()

    assert choice.backend is backend
    assert choice.reason == f"kubelet's chain {hint} is in the {backend} tables"


def test_hint_in_nft_wins_over_many_legacy_rules_and_a_legacy_hint() -> None:
    """An old hint in legacy, with many rules, may be left over from another time; the newer backend wins."""
    _load("iptables-legacy", _HINT.format(chain="KUBE-IPTABLES-HINT") + _MANY)
    _load("iptables-nft", _HINT.format(chain="KUBE-IPTABLES-HINT"))

    assert _auto().backend is Backend.NFT


@pytest.mark.parametrize("chain", ["PREROUTING", "OUTPUT"])
@pytest.mark.parametrize("ours", list(Backend))
def test_our_own_chains_win_over_all_other_evidence(ours: Backend, chain: str) -> None:
    """What was chosen once is chosen again, even if the other backend has a hint and more rules by now."""
    other = next(backend for backend in Backend if backend is not ours)
    _load(f"iptables-{ours}", _OURS.format(chain=chain))
    _load(f"iptables-{other}", _HINT.format(chain="KUBE-IPTABLES-HINT") + _MANY)

    choice = _auto()

    assert choice.backend is ours
    assert choice.reason == f"our chains are in the {ours} tables"


def test_our_chains_in_both_backends_are_no_evidence() -> None:
    """If both hold our chains, the next evidence decides."""
    for backend in Backend:
        _load(f"iptables-{backend}", _OURS.format(chain="OUTPUT"))
    _load("iptables-legacy", _MANY)

    assert _auto().reason == "the legacy tables hold more rules (61) than the nft tables (1)"


def test_more_legacy_rules_decide_for_legacy() -> None:
    """Without any chain of Kubernetes the backend with more rules is the one in use."""
    _load("iptables-legacy", _MANY)
    _load("iptables-nft", "*filter\n-A OUTPUT -j ACCEPT\nCOMMIT\n")

    choice = _auto()

    assert choice.backend is Backend.LEGACY
    assert choice.reason == "the legacy tables hold more rules (60) than the nft tables (1)"


def test_empty_legacy_tables_are_no_evidence() -> None:
    """A legacy table that somebody created by looking does not make a host a legacy host."""
    _load("iptables-legacy", "*filter\nCOMMIT\n")

    assert _auto().backend is Backend.NFT


@pytest.mark.parametrize("backend", list(Backend))
def test_only_installed_backend_is_taken(backend: Backend) -> None:
    """One backend is installed: nothing else is asked, whatever the tables hold."""
    other = next(each for each in Backend if each is not backend)
    _load(f"iptables-{other}", _OURS.format(chain="OUTPUT"))
    runner = Without(lambda name: backend not in name)

    choice = choose_backend(runner, "auto", _BOTH)

    assert (choice.backend, choice.reason) == (backend, f"only the {backend} programs are installed")


@pytest.mark.parametrize("backend", list(Backend))
def test_pinned_backend_wins_over_evidence(backend: Backend) -> None:
    """A pin needs no evidence and heeds none."""
    other = next(each for each in Backend if each is not backend)
    _load(f"iptables-{other}", _OURS.format(chain="OUTPUT"))

    choice = choose_backend(SubprocessRunner(), backend.value, _BOTH)

    assert choice.backend is backend
    assert choice.reason == f"the backend {backend} is pinned by the configuration"
    assert {programs.backend for programs in choice.programs.values()} == {backend}


def test_pinned_backend_that_is_absent_is_an_error() -> None:
    """A pin is never replaced by what is there."""
    runner = Without(lambda name: "legacy" in name)

    with pytest.raises(MissingProgramError, match=r"the backend legacy is pinned, but .* \(there is nft\)"):
        choose_backend(runner, "legacy", _BOTH)


def test_machine_without_iptables_is_an_error() -> None:
    """No program of any name: the error says so."""
    with pytest.raises(MissingProgramError, match="no iptables programs are installed"):
        choose_backend(Without(lambda _: True), "auto", _BOTH)


@pytest.mark.parametrize(
    ("present", "save"),
    [
        ("iptables", ("iptables-save",)),
        ("xtables-nft-multi", ("xtables-nft-multi", "iptables-save")),
        ("xtables-legacy-multi", ("xtables-legacy-multi", "iptables-save")),
    ],
)
def test_programs_of_other_names_are_found(present: str, save: tuple[str, ...]) -> None:
    """Plain names and the binaries behind all names do as well; the version tells the backend."""
    runner = Without(lambda name: name not in (present, f"{present}-save", f"{present}-restore"))

    choice = choose_backend(runner, "auto", (Family.IPV4,))

    programs = choice.programs[Family.IPV4]
    assert programs.save == save
    assert programs.backend is (Backend.LEGACY if "legacy" in present else Backend.NFT)
    assert programs.version >= (1, 8)


_WRONG = {
    "nonsense": ("echo hello", "iptables-nft-restore --version tells no version: 'hello'"),
    "nothing": ("true", "iptables-nft-restore --version tells no version: ''"),
    "escapes": ("printf '\\033[2J\\377'", r"iptables-nft-restore --version tells no version: '\x1b[2J\udcff'"),
    "numbers": (f"echo v{'9' * 5000}.1", f"iptables-nft-restore --version tells no version: 'v{'9' * 79}'"),
    "two lines": (
        "echo iptables v1.8.9; echo '(nf_tables)'",
        "iptables-nft-restore --version tells the backend legacy, its name nft: 'iptables v1.8.9'",
    ),
    "the other backend": (
        "echo iptables-restore v1.8.9 '(legacy)'",
        "iptables-nft-restore --version tells the backend legacy, its name nft: 'iptables-restore v1.8.9 (legacy)'",
    ),
}


def _says(folder: Path, script: str, *names: str) -> None:
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize("wrong", _WRONG)
def test_program_with_a_wrong_version_text_is_passed_over(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another name for the same backend is used, and both are told; no claim moves rules to another store."""
    script, problem = _WRONG[wrong]
    _says(tmp_path, script, "iptables-nft-restore")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin")

    choice = choose_backend(SubprocessRunner(), "nft", (Family.IPV4,))

    programs = choice.programs[Family.IPV4]
    assert (programs.backend, programs.restore) == (Backend.NFT, ("iptables-restore",))
    assert choice.oddities == (f"{problem}; used: iptables-restore ({programs.version_text})",)


def test_program_whose_version_nobody_tells_is_taken_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last resort: no option that an old one would not know."""
    _says(tmp_path, "echo hello", "iptables-nft-restore", "iptables-restore", "xtables-nft-multi")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin")

    choice = choose_backend(SubprocessRunner(), "nft", (Family.IPV4,))

    programs = choice.programs[Family.IPV4]
    assert (programs.restore, programs.version) == (("iptables-nft-restore",), ())
    assert not features(programs).restore_wait
    assert choice.oddities[0].endswith("used: iptables-nft-restore (unknown version: 'hello')")


def test_version_is_found_behind_what_a_wrapper_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a wrapper before the version is no oddity."""
    _says(tmp_path, "echo I am a wrapper; echo iptables-restore v1.8.9 '(nf_tables)'", "iptables-nft-restore")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin")

    choice = choose_backend(SubprocessRunner(), "nft", (Family.IPV4,))

    assert choice.programs[Family.IPV4].version_text == "iptables-restore v1.8.9 (nf_tables)"
    assert choice.oddities == ()


def test_lying_programs_alone_are_no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claims the other backend: nothing is written, and the error has what they say."""
    for backend, other in (("nft", "legacy"), ("legacy", "nf_tables")):
        _says(tmp_path, f"echo v1.8.9 '({other})'", f"iptables-{backend}-restore")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MissingProgramError, match=r"tells the backend legacy, its name nft.*its name legacy"):
        choose_backend(
            Without(lambda name: name != "iptables-nft-restore" and "legacy-restore" not in name),
            "auto",
            (Family.IPV4,),
        )


def test_missing_ip6tables_leaves_ipv4() -> None:
    """The family without a program is set aside with one line, the other works."""
    choice = choose_backend(Without(lambda name: name.startswith(("ip6tables", "xtables"))), "nft", _BOTH)

    assert list(choice.programs) == [Family.IPV4]
    assert choice.unavailable == {Family.IPV6: "there is no ip6tables program of the backend nft"}


@pytest.mark.parametrize("backend", list(Backend))
def test_ip6tables_that_fails_is_told_with_its_own_words(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that knows its version but no nat table makes IPv6 unavailable; its message is the reason."""
    program = tmp_path / f"ip6tables-{backend}"
    program.write_text(
        "#!/bin/sh\necho \"can't initialize ip6tables table \\`nat': Table does not exist\" >&2\nexit 3\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin")

    choice = choose_backend(SubprocessRunner(), backend.value, _BOTH)

    assert list(choice.programs) == [Family.IPV4]
    assert choice.unavailable[Family.IPV6].startswith("there is no nat table: can't initialize ip6tables table `nat'")


def test_ipv6_that_is_switched_off_is_told() -> None:
    """The sysctl decides; for a node of IPv6 alone this is an error."""
    assert write_sysctl("net/ipv6/conf/all/disable_ipv6", "1").problem == ""

    choice = _auto()

    assert choice.unavailable == {
        Family.IPV6: "IPv6 is switched off (net.ipv6.conf.all.disable_ipv6 = 1)",
    }
    with pytest.raises(MissingFeatureError, match="no IP family can be used: ipv6: IPv6 is switched off"):
        _auto((Family.IPV6,))


@pytest.mark.parametrize(
    ("version", "abilities"),
    [
        ("v1.4.7", (False, False)),
        ("v1.6.1", (False, True)),
        ("v1.6.2", (True, True)),
        ("v1.8.10 (legacy)", (True, True)),
    ],
)
def test_version_tells_what_the_programs_can_do(
    version: str, abilities: tuple[bool, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old versions have no word in brackets and are legacy; options came with 1.4.22 and 1.6.2."""
    for name in ("iptables", "iptables-save", "iptables-restore"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} '{version}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    runner = Without(lambda name: not name.startswith("iptables") or "-nft" in name or "-legacy" in name)

    choice = choose_backend(runner, "auto", (Family.IPV4,))

    found = features(choice.programs[Family.IPV4])
    assert choice.backend is Backend.LEGACY
    assert (found.restore_wait, found.command_wait) == abilities
