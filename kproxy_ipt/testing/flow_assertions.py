"""
Flows in tests: `rules.flow(source="pod", to="10.96.0.10", port=80).reaches({"10.244.1.5:8080": 1})`.

What comes in is objects and configuration as a person writes them (texts, files, plain dictionaries, builders of
`kproxy_ipt.testing.objects`); what goes out is silence, or an AssertionError that shows the rules that were met. No
kernel is asked.
"""

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import msgspec

from kproxy_ipt.addresses import Family, canonical_address
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.document import API_VERSION, KIND
from kproxy_ipt.config.model import Config
from kproxy_ipt.errors import Severity
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import Decoded, decode_documents
from kproxy_ipt.objects.model import EndpointSlice, Node, Objects, Service
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.rules.options import NFACCT_COUNTERS
from kproxy_ipt.ruleset.canonical import canonical_ruleset
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.sources.files import read_paths
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.testing.flow_table import CaseError
from kproxy_ipt.testing.flows import (
    Expectation,
    Fate,
    Flow,
    NoDelivery,
    canonical_endpoint,
    expected_text,
    problems_of,
)
from kproxy_ipt.testing.golden import path_lines
from kproxy_ipt.testing.scene import Scene, scene_of

GivenObject: TypeAlias = "Path | str | Mapping[str, object] | Service | EndpointSlice | Node"
"""A file or folder, YAML or JSON text, a plain object, or one of a builder."""

GivenObjects: TypeAlias = "GivenObject | Iterable[GivenObject]"

GivenConfig: TypeAlias = "Config | Mapping[str, object] | str | Path | None"
"""A KubeProxyConfiguration as value, plain fields (kind and version may be left out), text or file."""

Share: TypeAlias = "Fraction | int | float | str"


class Rules:
    """The rules that a node makes of some objects, ready for packets."""

    def __init__(self, objects: Objects, config: Config, node: NodeFacts, machine: MachineFacts) -> None:
        self.objects = objects
        self._config = config
        self._node = node
        self._machine = machine

    @cached_property
    def _rulesets(self) -> dict[Family, Ruleset]:
        return {
            family: with_base_chains(
                build_ruleset(take_snapshot(self.objects, family, self._node), self._config, self._machine)
            )
            for family in Family
        }

    @cached_property
    def _scene(self) -> Scene:
        return scene_of(self._rulesets, self._config, self._node, self._machine.interface_addresses)

    def ruleset(self, family: str = "ipv4") -> Ruleset:
        """The Ruleset of *family* (`ipv4`, `ipv6`), built-in chains included."""
        return self._rulesets[Family(family)]

    def text(self, family: str = "ipv4") -> str:
        """The rules of *family* in the canonical form, as golden files have them."""
        return canonical_ruleset(self.ruleset(family))

    def flow(
        self, *, source: str = "pod", to: str, port: int, protocol: str = "tcp", interface: str = ""
    ) -> "FlowUnderTest":
        """
        A new connection.

        Args:
            source: `pod`, `node`, `outside` or an address.
            to: An address.
            port: 1 to 65535.
            protocol: `tcp`, `udp` or `sctp`.
            interface: Where the packet comes in; default one that fits *source*.

        Raises:
            ValueError: *source* has no address of the family of *to*, or one of them is no address.
        """
        flow = Flow(source=source, to=to, port=port, protocol=protocol, interface=interface)
        try:
            return FlowUnderTest(flow, self._scene.fate(flow))
        except CaseError as error:
            raise ValueError(str(error)) from error


class FlowUnderTest:
    """A flow and what became of it; every method asserts one thing and returns the flow for the next."""

    def __init__(self, flow: Flow, fate: Fate) -> None:
        self._flow = flow
        self.fate = fate

    def __repr__(self) -> str:
        """`<pod -> 10.96.0.10:80/tcp: 10.244.1.5:8080 masqueraded>`."""
        return f"<{self._flow}: {self.fate}>"

    def reaches(
        self, endpoints: Mapping[str, Share] | Collection[str], *, masqueraded: bool | None = None
    ) -> "FlowUnderTest":
        """
        Assert that the flow goes to exactly these endpoints, with these shares.

        Args:
            endpoints: `ADDRESS:PORT` -> share (`"1/3"`, a Fraction or a number); or endpoints that share equally.
            masqueraded: Whether all packets get the node's address as their source; None: either is right.

        Raises:
            ValueError: A text is no endpoint or no share, or nothing is given.
        """
        __tracebackhide__ = True
        if isinstance(endpoints, str) or not endpoints:
            raise ValueError(f"found {endpoints!r}, expected endpoints; see is_rejected and is_dropped")
        given = (
            endpoints if isinstance(endpoints, Mapping) else dict.fromkeys(endpoints, Fraction(1, len(set(endpoints))))
        )
        shares = {_endpoint(text): Fraction(str(share)) for text, share in given.items()}
        return self._expect(Expectation(shares=shares, masqueraded=masqueraded))

    def is_rejected(self) -> "FlowUnderTest":
        """Assert that every such connection is refused with an ICMP message or a reset."""
        __tracebackhide__ = True
        return self._ends(NoDelivery.REJECTED)

    def is_dropped(self) -> "FlowUnderTest":
        """Assert that every such packet is thrown away without a word."""
        __tracebackhide__ = True
        return self._ends(NoDelivery.DROPPED)

    def is_untouched(self) -> "FlowUnderTest":
        """Assert that the packets go where they were sent."""
        __tracebackhide__ = True
        return self._ends(NoDelivery.UNTOUCHED)

    def is_masqueraded(self) -> "FlowUnderTest":
        """Assert that all packets get the node's address as their source."""
        __tracebackhide__ = True
        return self._expect(Expectation(masqueraded=True))

    def is_not_masqueraded(self) -> "FlowUnderTest":
        """Assert that all packets keep their source."""
        __tracebackhide__ = True
        return self._expect(Expectation(masqueraded=False))

    def _ends(self, end: NoDelivery) -> "FlowUnderTest":
        __tracebackhide__ = True
        return self._expect(Expectation(shares={end: Fraction(1)}))

    def _expect(self, expectation: Expectation) -> "FlowUnderTest":
        __tracebackhide__ = True
        problems = problems_of(expectation, self.fate)
        if problems:
            raise AssertionError(_report(self._flow, expectation, self.fate, problems))
        return self


def _report(flow: Flow, expectation: Expectation, fate: Fate, problems: tuple[str, ...]) -> str:
    wanted = (f"  expected: {expected_text(expectation)}",) if expectation.shares else ()
    rules = ("  rules that were met:", *(f"    {line}" for line in path_lines(fate)))
    return "\n".join((f"{flow}: {'; '.join(problems)}", *wanted, f"  found:    {fate}", *rules))


def _endpoint(text: str) -> str:
    endpoint = canonical_endpoint(text)
    if endpoint is None:
        raise ValueError(f"found {text!r}, expected ADDRESS:PORT")
    return endpoint


def rules_for(
    objects: GivenObjects,
    *,
    config: GivenConfig = None,
    node: str = "",
    addresses: Collection[str] = (),
    nfacct: bool = True,
) -> Rules:
    """
    The rules that a node makes of *objects*.

    Args:
        objects: See `GivenObject`; also several of them.
        config: Default the default configuration: without cluster CIDR pods cannot be told from others.
        node: Name of the node; default `hostnameOverride`, else that of the only Node among *objects*.
        addresses: What it has on its interfaces besides loopback and the addresses of its Node object.
        nfacct: Whether the kernel has accounting objects; without them nothing listens on localhost.

    Raises:
        ConfigError: The configuration cannot be used.
        ValueError: An object was rejected, or one of *addresses* is no address.
        SourceError: A file cannot be read.
    """
    read = _read_objects(objects)
    rejected = [str(finding) for finding in read.findings if finding.severity is Severity.REJECTED]
    if rejected:
        raise ValueError("; ".join(rejected))
    effective = _read_config(config)
    facts = node_facts(read.nodes, node or effective.hostname_override.strip().lower() or _only_node(read))
    own = [_address(text) for text in addresses]
    machine = MachineFacts(
        interface_addresses=("127.0.0.1", "::1", *facts.addresses, *own),
        tcp_be_liberal=effective.conntrack.tcp_be_liberal,
        nfacct_counters=frozenset(NFACCT_COUNTERS if nfacct else ()),
    )
    return Rules(read, effective, facts, machine)


def _address(text: str) -> str:
    address = canonical_address(text)
    if address is None:
        raise ValueError(f"found {text!r}, expected an IP address")
    return address


def _only_node(objects: Objects) -> str:
    return objects.nodes[0].metadata.name if len(objects.nodes) == 1 else ""


def _read_objects(objects: GivenObjects) -> Objects:
    several = (objects,) if isinstance(objects, (Path, str, Mapping, Service, EndpointSlice, Node)) else tuple(objects)
    parts: list[Decoded] = []
    for number, one in enumerate(several, start=1):
        parts += _decoded(one, f"objects, part {number}" if len(several) > 1 else "objects")
    paths = [str(one) for one in several if isinstance(one, Path)]
    from_files = read_paths(paths) if paths else Objects()
    return _joined(collect(parts), from_files)


def _joined(first: Objects, second: Objects) -> Objects:
    return Objects(
        services=(*first.services, *second.services),
        endpoint_slices=(*first.endpoint_slices, *second.endpoint_slices),
        nodes=(*first.nodes, *second.nodes),
        findings=(*first.findings, *second.findings),
    )


def _decoded(one: GivenObject, origin: str) -> tuple[Decoded, ...]:
    if isinstance(one, Path):
        return ()
    if isinstance(one, Service):
        return (Decoded(origin=origin, services=(one,)),)
    if isinstance(one, EndpointSlice):
        return (Decoded(origin=origin, endpoint_slices=(one,)),)
    if isinstance(one, Node):
        return (Decoded(origin=origin, nodes=(one,)),)
    return decode_documents(one.encode() if isinstance(one, str) else msgspec.json.encode(one), origin)


def _read_config(config: GivenConfig) -> Config:
    if config is None:
        return Config()
    if isinstance(config, Config):
        return config
    if isinstance(config, Path):
        return decode_config(config.read_bytes(), str(config)).config
    if isinstance(config, str):
        return decode_config(config.encode(), "config").config
    return decode_config(msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, **config}), "config").config
