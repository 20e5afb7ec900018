"""
Golden cases: a folder each, with the objects and the configuration of a node and what should come of them.

::

    case.yaml       title, node (name; ips, by default those of the Node object), shows, sysctls, without (nfacct, ...)
    config.yaml     a KubeProxyConfiguration; optional
    objects.yaml    Nodes, Services, EndpointSlices: any manifest or dump
    iptables.txt    expected rules of IPv4 in the canonical form (`kproxy_ipt.canonical`); optional
    ip6tables.txt   those of IPv6; optional
    flows.yaml      expected flows (`flow_table.py`); optional

A folder with a `case.yaml` is a case. Decoding is strict: problems name file and field.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from kproxy_ipt.addresses import Family, canonical_address
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.model import Config
from kproxy_ipt.errors import ConfigError, Finding, SourceError
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.rules.options import NFACCT_COUNTERS
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.sources.files import read_paths
from kproxy_ipt.state.model import MachineFacts, NodeFacts, OptionalPart
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.testing.flow_table import CaseError, FlowTable, converted, decode_flows, plain_fields
from kproxy_ipt.testing.scene import Scene, scene_of

CASE_FILE, CONFIG_FILE, OBJECTS_FILE, FLOWS_FILE = "case.yaml", "config.yaml", "objects.yaml", "flows.yaml"
RULE_FILES: Mapping[Family, str] = {Family.IPV4: "iptables.txt", Family.IPV6: "ip6tables.txt"}

_LIBERAL = "net.netfilter.nf_conntrack_tcp_be_liberal"


class GoldenCase(msgspec.Struct, frozen=True, kw_only=True):
    """
    One case, decoded.

    Attributes:
        folder: Where it is.
        title: One line.
        config: The effective configuration.
        objects: With findings about them.
        node: The node that the rules are for.
        machine: What it has on its interfaces, and which parts of the kernel.
        expected: Text of the rule files that exist.
        flows: None if there is no table.
    """

    folder: Path
    title: str
    config: Config
    objects: Objects
    node: NodeFacts
    machine: MachineFacts
    expected: Mapping[Family, str]
    flows: FlowTable | None

    @property
    def name(self) -> str:
        """That of the folder."""
        return self.folder.name

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is odd about the objects."""
        return self.objects.findings

    def ruleset(self, family: Family) -> Ruleset:
        """The rules that the objects ask for, as a node without other rules has them."""
        snapshot = take_snapshot(self.objects, family, self.node)
        return with_base_chains(build_ruleset(snapshot, self.config, self.machine))

    def scene(self, rulesets: Mapping[Family, Ruleset]) -> Scene:
        """The node with *rulesets* in force, for flows."""
        table = self.flows or FlowTable()
        return scene_of(
            rulesets,
            self.config,
            self.node,
            self.machine.interface_addresses,
            addresses=table.addresses,
            interfaces=table.interfaces,
        )


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    ips: tuple[str, ...] = ()


class _Case(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    title: str
    shows: str = ""
    node: _Node = msgspec.field(default_factory=_Node)
    sysctls: dict[str, int | str] = {}
    without: tuple[Literal["nfacct", "random-fully"], ...] = ()


def find_cases(paths: Iterable[Path]) -> tuple[Path, ...]:
    """
    The folders of all cases at or below *paths*, sorted by path; nothing hidden.

    Raises:
        CaseError: A path does not exist, or holds no case.
    """
    found: dict[Path, None] = {}
    problems: list[str] = []
    for path in paths:
        folders = sorted(_cases_below(path)) if path.is_dir() else []
        if not folders:
            why = f"no case (a folder with {CASE_FILE}) is here" if path.is_dir() else "no such folder"
            problems.append(f"{path}: {why}")
        found.update(dict.fromkeys(folders))
    if problems:
        raise CaseError(tuple(problems))
    return tuple(found)


def _cases_below(path: Path) -> Iterator[Path]:
    for found in path.rglob(CASE_FILE):
        if not any(part.startswith(".") for part in found.relative_to(path).parts):
            yield found.parent


def load_case(folder: Path) -> GoldenCase:
    """
    Read the case in *folder*.

    Raises:
        CaseError: All problems of the first file that has any.
    """
    described = _described(folder)
    config = _config(folder)
    name = described.node.name or config.hostname_override.strip().lower()
    if not name:
        raise CaseError((f"{folder / CASE_FILE}: node.name: missing; say it here or as hostnameOverride",))
    try:
        objects = read_paths([str(folder / OBJECTS_FILE)])
    except SourceError as error:
        raise CaseError((str(error),)) from error
    facts = node_facts(objects.nodes, name)
    return GoldenCase(
        folder=folder,
        title=described.title,
        config=config,
        objects=objects,
        node=facts,
        machine=_machine(described, config, facts, folder),
        expected=_expected(folder),
        flows=_flows(folder),
    )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CaseError((f"{path}: {error.strerror or error}",)) from error


def _described(folder: Path) -> _Case:
    path = folder / CASE_FILE
    return converted(plain_fields(_content(path), str(path)), _Case, str(path), "")


def _config(folder: Path) -> Config:
    path = folder / CONFIG_FILE
    if not path.exists():
        return Config()
    try:
        return decode_config(_content(path), str(path)).config
    except ConfigError as error:
        raise CaseError(error.problems) from error


def _machine(described: _Case, config: Config, node: NodeFacts, folder: Path) -> MachineFacts:
    addresses = tuple(canonical_address(text) for text in described.node.ips)
    wrong = tuple(text for text, address in zip(described.node.ips, addresses, strict=True) if address is None)
    if wrong:
        raise CaseError(tuple(f"{folder / CASE_FILE}: node.ips: {text!r} is no IP address" for text in wrong))
    liberal = str(described.sysctls.get(_LIBERAL, 0)) == "1"
    return MachineFacts(
        interface_addresses=("127.0.0.1", "::1", *([one for one in addresses if one] or node.addresses)),
        tcp_be_liberal=liberal or config.conntrack.tcp_be_liberal,
        nfacct_counters=frozenset() if "nfacct" in described.without else frozenset(NFACCT_COUNTERS),
        lacking=frozenset(
            (family, OptionalPart.RANDOM_FULLY) for family in Family if "random-fully" in described.without
        ),
    )


def _expected(folder: Path) -> dict[Family, str]:
    files = {family: folder / name for family, name in RULE_FILES.items()}
    texts = {family: _content(path) for family, path in files.items() if path.exists()}
    try:
        return {family: text.decode() for family, text in texts.items()}
    except UnicodeDecodeError as error:
        raise CaseError((f"{folder}: the rule files must be UTF-8 text",)) from error


def _flows(folder: Path) -> FlowTable | None:
    path = folder / FLOWS_FILE
    return decode_flows(_content(path), str(path)) if path.exists() else None
