"""
Where rules come from: a kernel, a save file, objects, a recorded case.

Written `live[:NETNS]`, `from:PATH`, `golden:DIR`, `-` (a save text on standard input), or the path of a save file.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import click
import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.machine import BackendWish, Target, machine_facts, open_machine
from kproxy_ipt.daemon.node import own_node
from kproxy_ipt.errors import Finding, RulesetError, SourceError
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.sources.files import read_paths
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.state.snapshot import take_snapshot

_GOLDEN_FILES = {Family.IPV4: "iptables.txt", Family.IPV6: "ip6tables.txt"}
_IPV6_SIGN = re.compile(r" -[sd] [0-9a-f]*:|icmp6|--to-destination \[| --mask [0-9a-f]+:", re.ASCII)
_IPV4_SIGN = re.compile(r" -[sd] \d+\.|icmp-port|--to-destination \d+\.| --mask \d+\.", re.ASCII)


class SideKind(StrEnum):
    """Where the rules of a side are."""

    LIVE = "live"
    FILE = "file"
    OBJECTS = "from"
    GOLDEN = "golden"


class Side(msgspec.Struct, frozen=True):
    """One of the things compared: *place* is a namespace, "" for the own one, or a path, `-` for standard input."""

    kind: SideKind
    place: str


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a side does not say by itself.

    Attributes:
        families: Wanted ones.
        backend: For live rules.
        config: For rules that are built.
        node_name: Likewise.
        machine: Likewise: a machine that has everything, unless a live side tells what there is.
    """

    families: tuple[Family, ...]
    backend: BackendWish
    config: Config
    node_name: str
    machine: MachineFacts | None = None


class Read(msgspec.Struct, frozen=True):
    """
    The rules of one side.

    Attributes:
        rulesets: By family; families that the side does not have are left out.
        findings: What is odd about objects.
        notes: What else a person should know.
        machine: What a live side tells about its machine.
        objects: Of a side that is built from objects.
    """

    rulesets: Mapping[Family, Ruleset]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    machine: MachineFacts | None = None
    objects: Objects | None = None


def side_of(text: str) -> Side:
    """
    Read the name of a side.

    A file called like a kind (`live`) can be written `./live`.
    """
    word, colon, place = text.partition(":")
    if word in (SideKind.LIVE, SideKind.OBJECTS, SideKind.GOLDEN) and (colon or word == SideKind.LIVE):
        if not place and word != SideKind.LIVE:
            raise click.UsageError(f"{text!r} names no path, expected {word}:PATH")
        return Side(SideKind(word), place)
    return Side(SideKind.FILE, text)


def read_side(side: Side, circumstances: Circumstances) -> Read:
    """
    The rules of *side*.

    Raises:
        SourceError: A file cannot be read.
        RulesetError: It holds no rules.
        KernelError: Live rules cannot be read.
        ConfigError: The configuration does not fit the node.
    """
    match side.kind:
        case SideKind.LIVE:
            return _read_live(side.place or None, circumstances)
        case SideKind.OBJECTS:
            return _read_objects((side.place,), circumstances)
        case SideKind.GOLDEN:
            return _read_golden(Path(side.place), circumstances.families)
        case SideKind.FILE:
            return _read_file(side.place, circumstances.families)


def sides_of(first: str, second: str) -> tuple[Side, Side]:
    """
    Both sides of a comparison.

    Raises:
        UsageError: Both are standard input.
    """
    sides = (side_of(first), side_of(second))
    if all(side.place == "-" for side in sides):
        raise click.UsageError("standard input can be one side, not both")
    return sides


def read_both(sides: tuple[Side, Side], circumstances: Circumstances) -> tuple[Read, Read]:
    """Read live sides first: rules that are built for the same comparison are those for that machine."""
    reads: dict[int, Read] = {}
    for index in sorted((0, 1), key=lambda number: sides[number].kind is not SideKind.LIVE):
        read = reads[index] = read_side(sides[index], circumstances)
        if read.machine and circumstances.machine is None:
            circumstances = msgspec.structs.replace(circumstances, machine=read.machine)
    return reads[0], reads[1]


def pairs_of(reads: tuple[Read, Read]) -> Mapping[Family, tuple[Ruleset, Ruleset]]:
    """
    The rules of both sides by family, without families that only one side has.

    Raises:
        SourceError: They have no family in common.
    """
    first, second = (read.rulesets for read in reads)
    both = {family: (first[family], second[family]) for family in first if family in second}
    if not both:
        known = [", ".join(family.api_name for family in rulesets) or "nothing" for rulesets in (first, second)]
        raise SourceError(f"nothing to compare: A holds {known[0]}, B holds {known[1]}")
    return both


def _read_live(netns: str | None, circumstances: Circumstances) -> Read:
    target = Target(netns=netns, backend=circumstances.backend, families=circumstances.families)
    with inside(netns):
        machine = open_machine(target)
        saves = {family: iptables.start_save() for family, iptables in machine.iptables.items()}
        texts = {family: save.text() for family, save in saves.items()}
        facts = machine_facts(machine, ensure=False)
    notes = tuple(f"{family.api_name} is left out: {reason}" for family, reason in machine.choice.unavailable.items())
    return Read({family: parse_save(text, family) for family, text in texts.items()}, notes=notes, machine=facts)


def _read_objects(paths: Sequence[str], circumstances: Circumstances) -> Read:
    objects = read_paths(paths, stdin=sys.stdin.buffer)
    config = circumstances.config
    node = own_node(objects, config, circumstances.node_name)
    machine = circumstances.machine or MachineFacts(tcp_be_liberal=config.conntrack.tcp_be_liberal)
    rulesets = {
        family: with_base_chains(build_ruleset(take_snapshot(objects, family, node), config, machine))
        for family in circumstances.families
    }
    return Read(rulesets, findings=objects.findings, objects=objects)


def _read_golden(folder: Path, families: Sequence[Family]) -> Read:
    paths = {family: folder / _GOLDEN_FILES[family] for family in families}
    texts = {family: _content(path) for family, path in paths.items() if path.exists()}
    if not texts:
        wanted = " or ".join(path.name for path in paths.values())
        raise SourceError(f"{folder}: there is no {wanted}")
    return Read({family: _parsed(text, family, str(paths[family])) for family, text in texts.items()})


def _read_file(path: str, families: Sequence[Family]) -> Read:
    """A save text does not say which family it is of; one without any address is what was asked for."""
    text = _content(Path(path)) if path != "-" else _decoded(sys.stdin.buffer.read(), "standard input")
    shown = "standard input" if path == "-" else path
    if not text.strip():  # a pipe whose first program failed must not look like an empty kernel
        raise SourceError(f"{shown}: found nothing, expected the output of iptables-save")
    found = family_of_text(text)
    kept = families if found is None else tuple(family for family in families if family is found)
    if not kept and found:
        raise SourceError(f"{shown}: the rules are of {found.api_name}, which was not asked for (--family)")
    return Read({family: _parsed(text, family, shown) for family in kept})


def family_of_text(text: str) -> Family | None:
    """The family whose addresses rules of a save text name first, None if they name none."""
    six, four = _IPV6_SIGN.search(text), _IPV4_SIGN.search(text)
    if six and (four is None or six.start() < four.start()):
        return Family.IPV6
    return Family.IPV4 if four else None


def _parsed(text: str, family: Family, shown: str) -> Ruleset:
    try:
        return parse_save(text, family)
    except RulesetError as error:
        raise SourceError(f"{shown}: {error}") from error


def _content(path: Path) -> str:
    try:
        return _decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error


def _decoded(octets: bytes, shown: str) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{shown}: found bytes that are no UTF-8, expected the text of iptables-save") from error
