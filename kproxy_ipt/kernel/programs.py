"""
The iptables programs of a machine: which there are, of which backend and version, and what that version can do.

Names differ between distributions: `iptables-nft-restore` and `iptables-legacy-restore`, or only the plain
`iptables-restore`, or only the binaries `xtables-nft-multi` and `xtables-legacy-multi`. The version text tells the
backend (`v1.8.9 (nf_tables)`); texts without a word in brackets are older than 1.8 and legacy.

Version texts are not believed blindly. A program whose name says another backend than its text is not used, since
nobody can tell which store it writes to. One that tells no version at all is the last resort: its name tells the
backend, and it is given no option that some version does not know. Optional parts of rules are tried, whatever the
version.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, MissingPrivilegeError, MissingProgramError
from kproxy_ipt.kernel.command import Completed, Runner, Running

_VERSION = re.compile(r"\bv(\d{1,6}(?:\.\d{1,6})+)\b(?:[ \t]+\((nf_tables|legacy)\))?")
_WORD = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
_VERSION_TIMEOUT_S = 20.0
_SHOWN = 80
_RESTORE_WAIT_SINCE = (1, 6, 2)
_WAIT_SECONDS_SINCE = (1, 4, 22)


class Backend(StrEnum):
    """Where rules live: in nf_tables, or in the older x_tables that libiptc reads."""

    NFT = "nft"
    LEGACY = "legacy"


class Programs(msgspec.Struct, frozen=True):
    """
    The programs of one backend and family; each is the beginning of an argument list, of one or two words.

    Attributes:
        command: Such as `("iptables-nft",)` or `("xtables-nft-multi", "iptables")`.
        save: Such as `("iptables-nft-save",)`.
        restore: Such as `("iptables-nft-restore",)`.
        version: `(1, 8, 9)`, or `()` if it is not known.
        version_text: The line that the program prints about itself.
    """

    backend: Backend
    family: Family
    command: tuple[str, ...]
    save: tuple[str, ...]
    restore: tuple[str, ...]
    version: tuple[int, ...]
    version_text: str


class Features(msgspec.Struct, frozen=True):
    """
    What a version of the programs can do.

    Attributes:
        restore_wait: The restore program knows `-w SECONDS`.
        command_wait: The command knows `-w SECONDS`.
    """

    restore_wait: bool
    command_wait: bool


class Installed(msgspec.Struct, frozen=True):
    """
    What was found for one family.

    Attributes:
        programs: By backend.
        plain: The backend of the program that is called just `iptables`, or None.
        problems: One line for each program that is there but does not answer, or not as such a program does.
    """

    programs: Mapping[Backend, Programs]
    plain: Backend | None
    problems: tuple[str, ...]


def features(programs: Programs) -> Features:
    """What the version of *programs* can do."""
    return Features(
        restore_wait=programs.version >= _RESTORE_WAIT_SINCE,
        command_wait=programs.version >= _WAIT_SECONDS_SINCE,
    )


def installed_programs(runner: Runner, families: Sequence[Family]) -> Mapping[Family, Installed]:
    """
    Ask all programs of the known names for their version; the answers are waited for together.

    Raises:
        MissingPrivilegeError: A program is there but may not be started.
    """
    asked = {family: [_Question(runner, heads) for heads in _usual_heads(family)] for family in families}
    return {family: _found(runner, family, questions) for family, questions in asked.items()}


class _Heads(msgspec.Struct, frozen=True):
    """Three programs that belong together."""

    command: tuple[str, ...]
    save: tuple[str, ...]
    restore: tuple[str, ...]
    is_plain: bool = False


def _usual_heads(family: Family) -> list[_Heads]:
    word = _WORD[family]
    named = [_heads(f"{word}-{backend}") for backend in Backend]
    return [*named, msgspec.structs.replace(_heads(word), is_plain=True)]


def _heads(word: str) -> _Heads:
    return _Heads((word,), (f"{word}-save",), (f"{word}-restore",))


def _multi_heads(family: Family, backend: Backend) -> _Heads:
    program, word = f"xtables-{backend}-multi", _WORD[family]
    return _Heads((program, word), (program, f"{word}-save"), (program, f"{word}-restore"))


class _Question:
    """The version of one group of programs, asked for in the background."""

    def __init__(self, runner: Runner, heads: _Heads) -> None:
        self.heads = heads
        self._runner = runner
        self._running: Running | None = None
        try:
            self._running = runner.start([*heads.restore, "--version"], timeout_s=_VERSION_TIMEOUT_S)
        except MissingProgramError:
            self._running = None

    def answer(self, family: Family) -> "_Answer":
        """What the version text says."""
        if self._running is None:
            return _Answer()
        try:
            completed = self._running.wait()
            if completed.exit_status != 0:
                # Restore programs before 1.6.2 do not tell their version, the command does.
                completed = self._runner.run([*self.heads.command, "--version"], timeout_s=_VERSION_TIMEOUT_S)
        except MissingPrivilegeError:
            raise
        except KernelError as error:
            return _Answer(problem=str(error))
        return _read_version(completed, family, self.heads)


class _Answer(msgspec.Struct, frozen=True):
    """The programs as their version text describes them; with a problem: as their name does, if it tells anything."""

    programs: Programs | None = None
    problem: str = ""


def _read_version(completed: Completed, family: Family, heads: _Heads) -> _Answer:
    asked = f"{' '.join(heads.restore)} --version"
    text = "\n".join((completed.stdout.strip(), completed.stderr.strip())).strip()
    line = text.partition("\n")[0][:_SHOWN]
    if completed.exit_status != 0:
        return _Answer(problem=f"{asked}: exit status {completed.exit_status}: {line or 'no output'}")
    named = next((backend for backend in Backend if f"-{backend}" in heads.restore[0]), None)
    match = _VERSION.search(text)
    if match is None:
        problem = f"{asked} tells no version: {line!a}"
        if named is None:
            return _Answer(problem=problem)
        programs = Programs(named, family, heads.command, heads.save, heads.restore, (), f"unknown version: {line!a}")
        return _Answer(programs, problem)
    line = next(each for each in text.splitlines() if match[0] in each)[:_SHOWN]
    line = line if line.isprintable() else ascii(line)
    backend = Backend.NFT if match[2] == "nf_tables" else Backend.LEGACY
    if named not in (None, backend):
        return _Answer(problem=f"{asked} tells the backend {backend}, its name {named}: {line!a}")
    version = tuple(int(part) for part in match[1].split("."))
    return _Answer(Programs(backend, family, heads.command, heads.save, heads.restore, version, line))


def _found(runner: Runner, family: Family, questions: Sequence[_Question]) -> Installed:
    programs: dict[Backend, Programs] = {}
    doubtful: dict[Backend, Programs] = {}
    plain = None
    problems = []
    for question in questions:
        answer = question.answer(family)
        problems += [answer.problem] if answer.problem else []
        if answer.programs is not None:
            (doubtful if answer.problem else programs).setdefault(answer.programs.backend, answer.programs)
            plain = answer.programs.backend if question.heads.is_plain else plain
    for backend in Backend:
        if backend not in programs:
            multi = _Question(runner, _multi_heads(family, backend)).answer(family)
            if multi.programs is not None:
                (doubtful if multi.problem else programs).setdefault(backend, multi.programs)
    return Installed(doubtful | programs, plain, tuple(problems))
