"""The trace form: a packet that somebody asks about, walked through the rules that the kernel has at this moment."""

from collections.abc import Mapping

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.status.scene import Scene
from kproxy_ipt.errors import KernelError, RulesetError
from kproxy_ipt.ruleset.reading import read_save
from kproxy_ipt.trace.distribution import distribution
from kproxy_ipt.trace.outcome_words import endpoint_text, packet_words, source_words, what_words, why_words
from kproxy_ipt.trace.packet import Host
from kproxy_ipt.trace.question import NODE, Question, QuestionError, family_of_question, packet_of
from kproxy_ipt.trace.tree import percent, tree_lines
from kproxy_ipt.trace.walk import walk

PROTOCOLS = ("tcp", "udp", "sctp")
_MOST_WAYS = 12


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that becomes of the packet, in words."""

    share: str
    what: str
    destination: str
    source: str
    why: str


class TraceView(msgspec.Struct, frozen=True, kw_only=True):
    """
    The form and its answer.

    Attributes:
        fields: As they were filled in.
        problem: Why there is no answer, "" if there is one or nobody asked.
        packet: On one line, "" where there is no answer.
        rows: What becomes of it.
        lines: The walk.
    """

    fields: Mapping[str, str]
    problem: str = ""
    packet: str = ""
    rows: tuple[TraceRow, ...] = ()
    lines: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


def trace_view(scene: Scene, fields: Mapping[str, str]) -> TraceView:
    """
    Answer the form; reads the tables of one family from the kernel.

    Args:
        scene: Knows the machine.
        fields: `from`, `to`, `port`, `protocol`, `interface`; `node` says that the node itself sends. Without `to`
            nobody has asked yet.
    """
    if not fields.get("to", "").strip():
        return TraceView(fields=fields)
    try:
        return _answer(scene, fields, _question(fields))
    except QuestionError as error:
        return TraceView(fields=fields, problem=str(error))
    except (KernelError, RulesetError) as error:
        return TraceView(fields=fields, problem=f"the rules could not be read: {error}")


def _question(fields: Mapping[str, str]) -> Question:
    question = Question(
        source=fields.get("from", "").strip(),
        destination=fields["to"].strip(),
        protocol=_protocol(fields.get("protocol", "")),
        destination_port=_port(fields.get("port", "").strip()),
        in_interface=fields.get("interface", "").strip(),
        from_node="node" in fields,
    )
    if not (question.source or question.from_node):
        raise QuestionError("say where the packet comes from, or that the node sends it")
    return question


def _protocol(text: str) -> str:
    if text and text not in PROTOCOLS:
        raise QuestionError(f"{text!r} is none of {', '.join(PROTOCOLS)}")
    return text


def _port(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or int(text) > 65535:
        raise QuestionError(f"{text!r} is no port")
    return int(text)


def _family(scene: Scene, question: Question) -> Family:
    """Of the node and a Service: one that the Service has, IPv4 before IPv6."""
    family = family_of_question(question, scene.machine_facts.interface_addresses)
    namespace, _, name = question.destination.removeprefix("svc/").partition(":")[0].partition("/")
    families = [one for one in scene.families if (namespace, name) in scene.states[one]]
    is_open = question.source in ("", NODE) and question.destination.startswith("svc/")
    return families[0] if is_open and families else family


def _answer(scene: Scene, fields: Mapping[str, str], question: Question) -> TraceView:
    addresses = scene.machine_facts.interface_addresses
    family = _family(scene, question)
    if scene.machine is None or family not in scene.machine.iptables:
        raise QuestionError(f"{family.api_name} is not served here")
    ruleset = read_save(scene.machine.iptables[family].start_save().text(), family)
    packet = packet_of(question, ruleset, addresses)
    outcomes = walk(ruleset, packet, Host(addresses=frozenset(addresses)))
    results = distribution(outcomes)
    return TraceView(
        fields=fields,
        packet=packet_words(packet, f"those of the kernel, {scene.backend}"),
        rows=tuple(
            TraceRow(
                share=percent(result.share),
                what=what_words(result),
                destination=endpoint_text(result.destination, result.destination_port),
                source=source_words(result),
                why=why_words(result),
            )
            for result in results
        ),
        lines=tuple(tree_lines(outcomes, most_ways=_MOST_WAYS)),
        assumptions=tuple(dict.fromkeys(text for result in results for text in result.assumptions)),
    )
