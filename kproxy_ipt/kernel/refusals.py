"""
Reading what a restore program prints when it refuses an input.

The programs were tried (1.8.9, both backends); their line numbers count from 1 through the whole input, over all its
sections, and are exact where they name a rule. These do not:

- nft finds a jump to a missing chain only at the end of a section (`Chain 'X' does not exist`, line of the COMMIT);
- legacy hands a section to the kernel at its COMMIT, so all that the kernel refuses is `line N failed` with the line
  of the COMMIT and no reason.

Then the rule is looked for by what the message names (chain, match, target), by the accounting objects that do not
exist, and by the extensions that the kernel does not list; if nothing is found, the line stays that of the COMMIT.
And nft finds a target in a wrong hook only when something leads there: it names the jump, of whatever chain that is.
A section is applied at its COMMIT, so all sections before the refused line are in force.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kproxy_ipt.errors import (
    KernelError,
    LockTimeoutError,
    MissingFeatureError,
    MissingPrivilegeError,
    RestoreError,
    RestoreFeatureError,
)
from kproxy_ipt.kernel.command import Completed
from kproxy_ipt.kernel.nfacct import read_counters
from kproxy_ipt.kernel.programs import Backend, Programs
from kproxy_ipt.kernel.xtables_proc import kernel_extensions

_LOCK = re.compile(r"holding the xtables lock|^Can't lock ", re.MULTILINE)
_PRIVILEGE = re.compile(
    r"you must be root|Operation not permitted|can't open lock file .*(?:Permission denied|Read-only)|Permission denied"
)
_TABLE = re.compile(
    r"can't initialize ip6?tables table `(\w+)'|unable to initialize table '(\w+)'|[Tt]able does not exist"
)
_NO_NFT = re.compile(
    r"Could not fetch rule set generation id: |(?:TABLE|CHAIN)_ADD failed \((?:Operation not supp|No such)"
)
_SHORTAGE = re.compile(
    r"\((?:Cannot allocate memory|No buffer space|Message too long|Interrupted|Resource temporarily)"
)
_LINE = re.compile(r"\bline:? (\d+)\b")
_MISSING_CHAIN = re.compile(r"Chain '([^']+)' does(?: not|n't) exist|Couldn't load target `([^']+)'|goto '([^']+)' is")
_UNLOADABLE = re.compile(r"Couldn't load (match|target) `([^']+)'")
_UNSUPPORTED = re.compile(r"Extension (\S+) revision \d+ not supported")
_RULE = re.compile(r"(?:\[\d+:\d+\] )?-[ADICRXF] (\S+)")
_EXTENSION = re.compile(r"(?:^| )(-m|-j|-g) (\S+)")
_ACCOUNT = re.compile(r"--nfacct-name (\S+)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_NOISE = re.compile(
    r"^(?:\s*|Try `.*|# Warning: .*|Error occurred at line: \d+)$|^ip6?tables\S*(?: v[\d.]+ \(\w+\))?:\s*", re.M
)
_TARGETS = frozenset(
    {"DNAT", "SNAT", "MASQUERADE", "MARK", "REJECT", "REDIRECT", "LOG", "CT", "NOTRACK", "TCPMSS", "CONNMARK", "NFLOG"}
)
_OPTIONS = {
    "DNAT": "CONFIG_NETFILTER_XT_NAT",
    "SNAT": "CONFIG_NETFILTER_XT_NAT",
    "MARK": "CONFIG_NETFILTER_XT_MARK",
    "mark": "CONFIG_NETFILTER_XT_MARK",
    "tcp": "CONFIG_NETFILTER_XTABLES",
    "udp": "CONFIG_NETFILTER_XTABLES",
    "REJECT": "CONFIG_IP_NF_TARGET_REJECT or CONFIG_IP6_NF_TARGET_REJECT",
}
NO_REASON = "the kernel refused this section or line without a reason"
"""The message where the program has nothing to say but a line number: legacy, for all that the kernel refuses."""

_NET_ADMIN_AND_RAW = 1 << 12 | 1 << 13


class _Culprit(msgspec.Struct, frozen=True):
    """The refused line: 1-based number or None, its text if it is a rule or chain line, and the chain named there."""

    line: int | None = None
    rule: str = ""
    chain: str = ""


def is_about_privilege(stderr: str) -> bool:
    """Whether a program says that it is not allowed to do what was asked."""
    return bool(_PRIVILEGE.search(stderr))


def needed_privilege(program: str) -> str:
    """What *program* needs to work; the legacy ones talk to the kernel through a raw socket."""
    also = "" if "-nft" in program else ", for legacy tables CAP_NET_RAW as well"
    return f"root or CAP_NET_ADMIN is needed{also}"


def is_about_missing_table(stderr: str) -> bool:
    """Whether a program says that the kernel lacks a table."""
    return bool(_TABLE.search(stderr)) or "do you need to insmod" in stderr or "does not exist" in stderr


def kernel_option(extension: str) -> str:
    """The kernel's build option of a match (`recent`) or target (`MASQUERADE`)."""
    kind = "TARGET" if extension.isupper() else "MATCH"
    return _OPTIONS.get(extension, f"CONFIG_NETFILTER_XT_{kind}_{extension.upper()}")


def refusal(completed: Completed, text: str, programs: Programs, owner_of: Callable[[str], str]) -> KernelError:
    """
    Turn the failure of a restore program into the error to raise.

    Args:
        completed: With an exit status other than 0.
        text: The restore input.
        programs: Whose restore program it was.
        owner_of: The service port text of a chain name, "" for chains that belong to none.

    Returns:
        `LockTimeoutError`, `MissingPrivilegeError`, `MissingFeatureError` (the machine as a whole),
        `RestoreFeatureError` (one rule needs what is missing), `RestoreError` (one rule is wrong, or unknown which),
        or a plain `KernelError` (killed, short of memory: nothing is wrong with the input).
    """
    return _machine_trouble(completed) or _input_trouble(completed, text.split("\n"), programs, owner_of)


def _machine_trouble(completed: Completed) -> KernelError | None:
    """What is not the fault of any line."""
    stderr, program = completed.stderr, completed.arguments[0]
    message = _clean(stderr)
    if completed.exit_status < 0:
        return KernelError(f"{program} was ended by signal {-completed.exit_status}: {message or 'no output'}")
    if _LOCK.search(stderr):
        return LockTimeoutError(f"another program holds the xtables lock: {message}")
    if _PRIVILEGE.search(stderr):
        return MissingPrivilegeError(f"{program}: {message}; {needed_privilege(program)}")
    if "can't open lock file" in stderr:
        return KernelError(f"{program}: {message}")
    table = _TABLE.search(stderr)
    if table:
        if not _may_administer():
            return MissingPrivilegeError(f"{program}: {message}; CAP_NET_ADMIN and CAP_NET_RAW are needed")
        name = table[1] or table[2] or "wanted"
        return MissingFeatureError(f"the kernel has no {name} table (CONFIG_IP_NF_{name.upper()}): {message}")
    if _NO_NFT.search(stderr):
        return MissingFeatureError(
            f"the kernel lacks a part of nf_tables (CONFIG_NF_TABLES, CONFIG_NFT_NAT): {message}"
        )
    return KernelError(f"{program}: {message}") if _SHORTAGE.search(stderr) else None


def _input_trouble(
    completed: Completed, lines: Sequence[str], programs: Programs, owner_of: Callable[[str], str]
) -> RestoreError:
    stderr = completed.stderr
    number = _line_number(stderr)
    section = _section(lines, number)
    culprit = _culprit(lines, number, section, stderr)
    missing = _named_feature(stderr)
    if not missing:
        candidates = [culprit.line] if culprit.rule and culprit.line else section
        culprit, missing = _found_missing(lines, candidates, programs) or (culprit, "")
    return (RestoreFeatureError if missing else RestoreError)(
        missing or _reason(completed),
        line=culprit.line,
        rule=culprit.rule,
        chain=culprit.chain,
        owner=owner_of(culprit.chain) if culprit.chain else "",
        committed=sum(line == "COMMIT" for line in lines[: number - 1]) if number else 0,
    )


def _line_number(stderr: str) -> int | None:
    """The first line number that is named; of several refused rules of one section nft names each."""
    match = _LINE.search(stderr)
    return int(match[1]) if match else None


def _section(lines: Sequence[str], number: int | None) -> range:
    """The 1-based numbers of the lines of the section that holds line *number*; all lines if it is unknown."""
    if number is None:
        return range(1, len(lines) + 1)
    first = last = min(number, len(lines))
    while first > 1 and not lines[first - 1].startswith("*"):
        first -= 1
    while last < len(lines) and lines[last - 1] != "COMMIT":
        last += 1
    return range(first, last + 1)


def _culprit(lines: Sequence[str], number: int | None, section: Sequence[int], stderr: str) -> _Culprit:
    """The named line if it can be the one, else the first of its section that uses what the message names."""
    chain, unloadable, unsupported = (pattern.search(stderr) for pattern in (_MISSING_CHAIN, _UNLOADABLE, _UNSUPPORTED))
    if chain:
        wanted = {_named(chain)}
    elif unloadable:
        wanted = {unloadable[2]}
    else:
        wanted = {unsupported[1]} if unsupported else set()
    if number is not None and number <= len(lines):
        text = lines[number - 1]
        if text.startswith(("-", "[")) and (not wanted or wanted & _extensions(text)):
            return _at(lines, number)
        if text.startswith(":") and not wanted:
            return _Culprit(number, text, text[1:].partition(" ")[0])
    for candidate in section:
        if wanted & _extensions(lines[candidate - 1]):
            return _at(lines, candidate)
    return _Culprit(number)


def _named(match: re.Match[str]) -> str:
    """The group that took part."""
    return next(group for group in match.groups() if group)


def _at(lines: Sequence[str], number: int) -> _Culprit:
    match = _RULE.match(lines[number - 1])
    return _Culprit(number, lines[number - 1], match[1] if match else "")


def _extensions(rule: str) -> set[str]:
    """The matches, targets and chains that a rule names; comments do not count."""
    if not rule.startswith(("-", "[")):
        return set()
    return {match[2] for match in _EXTENSION.finditer(_QUOTED.sub('""', rule))}


def _named_feature(stderr: str) -> str:
    """What the program itself says is missing, or ""."""
    unsupported = _UNSUPPORTED.search(stderr)
    if unsupported:
        return _lacking("the kernel", unsupported[1])
    unloadable = _UNLOADABLE.search(stderr)
    if unloadable and (unloadable[1] == "match" or unloadable[2] in _TARGETS):
        return _lacking("the iptables program", unloadable[2])
    if 'unknown option "--random-fully"' in stderr:
        return "the iptables program does not know --random-fully (1.6.2 does)"
    return ""


def _found_missing(lines: Sequence[str], candidates: Sequence[int], programs: Programs) -> tuple[_Culprit, str] | None:
    """The first of the candidate lines that needs an accounting object or extension that this machine lacks."""
    # nft programs always name a missing extension, and do without some that the kernel then does not list.
    known = kernel_extensions(programs.family) if programs.backend is Backend.LEGACY else None
    for number in candidates:
        missing = _missing_account(lines[number - 1]) or _missing_extension(lines[number - 1], known)
        if missing:
            return _at(lines, number), missing
    return None


def _missing_account(rule: str) -> str:
    match = _ACCOUNT.search(rule)
    if match is None or read_counters([match[1]]):
        return ""
    return f"the accounting object {match[1]} does not exist ({kernel_option('nfacct')})"


def _missing_extension(rule: str, known: frozenset[str] | None) -> str:
    if known is None or not rule.startswith("-"):
        return ""
    for match in _EXTENSION.finditer(_QUOTED.sub('""', rule)):
        if match[2] not in known and (match[1] == "-m" or match[2] in _TARGETS):
            return _lacking("the kernel", match[2])
    return ""


def _lacking(who: str, extension: str) -> str:
    kind = "target" if extension.isupper() else "match"
    return f"{who} lacks the {kind} {extension} ({kernel_option(extension)})"


def _reason(completed: Completed) -> str:
    """Why the line was refused, without its number and in other words where the program's own mislead."""
    absent = _MISSING_CHAIN.search(completed.stderr)
    if absent:
        return f"the chain {_named(absent)} does not exist"
    message = re.sub(r"\bline \d+(?:: | failed: )", "", _clean(completed.stderr))
    if re.fullmatch(r"line \d+ failed", message):
        return NO_REASON
    return message or f"exit status {completed.exit_status} without a word"


def _clean(stderr: str) -> str:
    """The message without the program's name, its advice, its warnings about other tables and empty lines."""
    lines = (_NOISE.sub("", line).strip() for line in stderr.splitlines())
    return "; ".join(line for line in lines if line)


def _may_administer() -> bool:
    """Whether this process holds CAP_NET_ADMIN and CAP_NET_RAW."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return match is None or int(match[1], 16) & _NET_ADMIN_AND_RAW == _NET_ADMIN_AND_RAW
