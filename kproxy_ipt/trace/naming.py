"""
Names in rules: which service port a step is about, and where a service port is found.

Rules say it in their comments (`shop/web:http cluster IP`), so rules of kube-proxy, of another machine, or of a file
can be named without any object.
"""

import re
from collections.abc import Iterator

from kproxy_ipt.errors import RulesetError
from kproxy_ipt.ruleset.matches import Comment, PortMatch
from kproxy_ipt.ruleset.model import Rule, Ruleset
from kproxy_ipt.trace.branches import row_of
from kproxy_ipt.trace.packet import Outcome

_NAME = r"[a-z0-9.-]+/[a-z0-9.-]+(?::[a-z0-9-]+)?"
_IN_LINE = re.compile(rf'--comment "?((?:.* for )?({_NAME})(?:(?: [^"]*)?"|(?= |$)))')
_COMMENT = re.compile(r'--comment (?:"((?:[^"\\]|\\.)*)"|(\S+))')
_OF_CLUSTER_IP = re.compile(rf"({_NAME}) (?:cluster IP|has no endpoints|has no local endpoints)")


def service_of(outcome: Outcome) -> str:
    """The service port that the path of *outcome* is about, `namespace/name:port`; "" where no comment says it."""
    found = (_IN_LINE.search(step.line) for step in outcome.path)
    return next((match[2] for match in found if match), "")


def reason_of(outcome: Outcome) -> str:
    """Comment of the last rule that was met, or its line where it has none: why a packet came to its end."""
    if not outcome.path:
        return ""
    step = outcome.path[-1]
    comment = _COMMENT.search(step.line)
    return (comment[1] or comment[2]) if comment else f"{step.table} {step.chain} {step.line}"


def _rules(ruleset: Ruleset) -> Iterator[Rule]:
    for table in ("nat", "filter"):
        yield from row_of(ruleset, table, "KUBE-SERVICES")


def _named(ruleset: Ruleset) -> Iterator[tuple[str, str, str, int]]:
    """Name, address, protocol and port of each rule for a cluster IP; those of other addresses come after."""
    others = []
    for rule in _rules(ruleset):
        comment = next((match.text for match in rule.matches if isinstance(match, Comment)), "")
        ports = next((match.destination for match in rule.matches if isinstance(match, PortMatch)), None)
        name = re.match(_NAME, comment)
        if not (name and ports and rule.destination):
            continue
        row = (name[0], rule.destination.rpartition("/")[0], rule.protocol, ports[0])
        if _OF_CLUSTER_IP.fullmatch(comment):
            yield row
        else:
            others.append(row)
    yield from others


def find_service(ruleset: Ruleset, name: str, port: str = "") -> tuple[str, str, int]:
    """
    Where a service is reached.

    Args:
        ruleset: With rules of kube-proxy's kind.
        name: `namespace/name`.
        port: Name or number of a port; "" takes the first.

    Returns:
        Cluster IP (or another address where rules know none), protocol and port.

    Raises:
        RulesetError: No rule names it; the message lists the ports that rules do name.
    """
    rows = [row for row in _named(ruleset) if row[0].partition(":")[0] == name]
    for text, address, protocol, number in rows:
        if port in ("", text.partition(":")[2], str(number)):
            return address, protocol, number
    known = ", ".join(dict.fromkeys(f"{text.partition(':')[2] or '-'} ({number})" for text, _, _, number in rows))
    hint = f"its ports are {known}" if known else "no rule names that service"
    raise RulesetError(f"svc/{name}{f':{port}' if port else ''} is not found in the rules: {hint}")
