"""
Flow tables held against a kernel: real packets, in a lab made for each case, with rules that a program wrote.

What comes in is folders of cases with `flows.yaml` and a command that writes rules into a network namespace
(`kproxy-ipt sync --once` unless somebody names another); what goes out is, for each flow, what was expected and what
was seen: which endpoints answered and how often, with which source address, or that nobody did.

Shares count as right unless chance alone makes such counts less than once in 10^9 flows (`shares.py`). Root is needed.
"""

import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kproxy_ipt.addresses import Family, family_of
from kproxy_ipt.config.model import DetectLocalMode
from kproxy_ipt.errors import KernelError, KproxyError, MissingPrivilegeError
from kproxy_ipt.testing.conform_lab import ConformLab, conform_lab, layout_of
from kproxy_ipt.testing.flow_table import CaseError, ExpectedFlow
from kproxy_ipt.testing.flows import Expectation, NoDelivery, endpoint_text, expected_text, share_text
from kproxy_ipt.testing.golden import CaseResult, FlowResult
from kproxy_ipt.testing.golden_case import CONFIG_FILE, FLOWS_FILE, OBJECTS_FILE, GoldenCase, find_cases, load_case
from kproxy_ipt.testing.shares import Sample, sample_shares
from kproxy_ipt.testing.sockets import sctp_available
from kproxy_ipt.testing.traffic import Exchange, Outcome
from kproxy_ipt.trace.packet import Packet

PLACEHOLDERS = ("netns", "objects", "config", "family", "backend", "node")
"""What a command may hold in braces."""

_OWN_PROGRAM = (
    f"{shlex.quote(sys.executable)} -c 'from kproxy_ipt_cli.main import main; main()' sync --once "
    "--from {objects} --config {config} --netns {netns} --backend {backend} --family {family} "
    "--hostname-override {node}"
)
_ONE_ENDPOINT, _SEVERAL_ENDPOINTS, _EACH_ENDPOINT = 8, 300, 20
_ANSWER_TIMEOUT_S, _DROP_TIMEOUT_S, _PROGRAM_TIMEOUT_S = 5.0, 0.4, 120.0
_INTERFACE_MODES = (DetectLocalMode.BRIDGE_INTERFACE, DetectLocalMode.INTERFACE_NAME_PREFIX)
_LAST_LINES = 5


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is put to the test.

    Attributes:
        program: The command that writes rules, with `PLACEHOLDERS`; "" is `kproxy-ipt sync --once`.
        backend: `nft` or `legacy`, for the command.
        families: Flows of others are left out.
        settle_s: 0: the command ends when the rules stand. Otherwise it may go on: they stand after so many seconds,
            and it is ended after the flows.
    """

    program: str = ""
    backend: str = "nft"
    families: tuple[Family, ...] = tuple(Family)
    settle_s: float = 0.0


class SeenFlow(msgspec.Struct, frozen=True, kw_only=True):
    """One flow: *problems* is empty if all is as expected, *skipped* says why it was not sent."""

    name: str
    expected: str
    seen: str = ""
    problems: tuple[str, ...] = ()
    skipped: str = ""


class ConformResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case with one backend; *errors* say why it cannot be judged."""

    folder: Path
    backend: str
    title: str = ""
    flows: tuple[SeenFlow, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Folder and backend, `03-cluster-ip (nft)`."""
        return f"{self.folder.name} ({self.backend})"

    def as_case(self) -> CaseResult:
        """In the form of golden reports."""
        flows = tuple(
            FlowResult(
                name=flow.name,
                expected=flow.expected,
                found=flow.seen,
                problems=flow.problems,
                skipped=flow.skipped,
            )
            for flow in self.flows
        )
        return CaseResult(folder=self.folder.with_name(self.name), title=self.title, flows=flows, errors=self.errors)


def cases_with_flows(paths: Sequence[Path]) -> tuple[Path, ...]:
    """
    The folders at or below *paths* that hold a case with a table.

    Raises:
        CaseError: A path does not exist or holds no case, or none of all cases has a table.
    """
    found = tuple(folder for folder in find_cases(paths) if (folder / FLOWS_FILE).exists())
    if not found:
        raise CaseError((f"no case with {FLOWS_FILE} is in {', '.join(map(str, paths))}",))
    return found


def check_program(program: str) -> None:
    """
    Look at a command before anything is made.

    Raises:
        CaseError: It is empty, quoted wrongly, or holds a placeholder that nobody knows.
    """
    try:
        _command(program, dict.fromkeys(PLACEHOLDERS, "x"))
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise CaseError((f"the command {program!r} cannot be used ({error}); known are {known}",)) from error


def require_root() -> None:
    """
    Say at once that nothing will work.

    Raises:
        MissingPrivilegeError: Not root.
    """
    if os.geteuid() != 0:
        raise MissingPrivilegeError(
            "network namespaces can only be made by root; `unshare -rnm` with a tmpfs on /run is root enough"
        )


def conform_case(folder: Path, trial: Trial) -> ConformResult:
    """Hold one case against the kernel; what keeps it from being judged is among the errors of the result."""
    try:
        case = load_case(folder)
        return ConformResult(
            folder=folder, backend=trial.backend, title=case.title, flows=tuple(_seen_flows(case, trial))
        )
    except CaseError as error:
        return ConformResult(folder=folder, backend=trial.backend, errors=error.problems)
    except (KproxyError, OSError) as error:
        return ConformResult(folder=folder, backend=trial.backend, errors=(f"{folder}: {error}",))


def _seen_flows(case: GoldenCase, trial: Trial) -> list[SeenFlow]:
    scene = case.scene({})
    wanted = [
        (line, scene.packet(line.flow))
        for line in (case.flows.flows if case.flows else ())
        if family_of(line.flow.to) in trial.families
    ]
    if not wanted:
        return []
    layout = layout_of(scene, case.objects, [packet for _, packet in wanted])
    with conform_lab(layout) as lab, _rules_written(case, trial, lab.node):
        return [_seen_flow(case, line, packet, lab) for line, packet in wanted]


def _seen_flow(case: GoldenCase, line: ExpectedFlow, packet: Packet, lab: ConformLab) -> SeenFlow:
    expected = expected_text(line.expectation)
    reason = _why_not(case, line, packet, lab)
    if reason:
        return SeenFlow(name=line.name, expected=expected, skipped=reason)
    exchanges, problems = _sent(line, packet, lab, as_strangers=_is_sticky(case, line))
    counts, sources = _observed(exchanges, packet, line.expectation)
    return SeenFlow(
        name=line.name,
        expected=expected,
        seen=_seen_text(counts, sources, packet.source),
        problems=(*problems, *_source_problems(sources, packet.source, line.expectation)),
    )


def _sent(
    line: ExpectedFlow, packet: Packet, lab: ConformLab, *, as_strangers: bool
) -> tuple[Sequence[Exchange], Sequence[str]]:
    """What became of the connections of a flow, and what is wrong with how often each endpoint or end was seen."""
    exchanges: list[Exchange] = []
    timeout_s = _DROP_TIMEOUT_S if NoDelivery.DROPPED in line.expectation.shares else _ANSWER_TIMEOUT_S

    def ask() -> Counter[str]:
        count = _connections(line.expectation)
        more = lab.send(packet, count=count, timeout_s=timeout_s, as_strangers=as_strangers).exchanges
        exchanges.extend(more)
        return _observed(more, packet, line.expectation)[0]

    shares = {str(key): float(share) for key, share in line.expectation.shares.items()}
    if not shares:
        ask()
        return exchanges, ()
    return exchanges, tuple(_count_problems(sample_shares(ask, shares), line.expectation))


def _connections(expectation: Expectation) -> int:
    """In a round: so many that the smallest share makes 20."""
    shares = [share for share in expectation.shares.values() if share]
    return max(_SEVERAL_ENDPOINTS, math.ceil(_EACH_ENDPOINT / min(shares))) if len(shares) > 1 else _ONE_ENDPOINT


def _is_sticky(case: GoldenCase, line: ExpectedFlow) -> bool:
    """Whether a client may be held to one of several endpoints: its shares show in first connections alone."""
    affine = any(service.spec.session_affinity == "ClientIP" for service in case.objects.services)
    return affine and len(line.expectation.shares) > 1


def _why_not(case: GoldenCase, line: ExpectedFlow, packet: Packet, lab: ConformLab) -> str:
    """Why a flow cannot be sent or judged here, "" if it can."""
    if packet.protocol == "sctp" and not sctp_available():
        return "this kernel has no SCTP sockets"
    if packet.source in lab.layout.alone and case.config.detect_local_mode in _INTERFACE_MODES:
        return "its source needs an interface of its own, and the rules look at names of interfaces"
    if _is_sticky(case, line) and not lab.remembers_clients():
        return "session affinity: one client stays with one endpoint, in lists that cannot be emptied from here"
    return ""


_WORDS = {Outcome.REFUSED: NoDelivery.REJECTED.value, Outcome.TIMEOUT: NoDelivery.DROPPED.value}


def _observed(
    exchanges: Sequence[Exchange], packet: Packet, expectation: Expectation
) -> tuple[Counter[str], Mapping[str, frozenset[str]]]:
    """How often each endpoint or end was seen, and the source addresses that each one saw."""
    itself = endpoint_text(packet.destination, packet.destination_port)
    counts: Counter[str] = Counter()
    sources: dict[str, set[str]] = {}
    for exchange in exchanges:
        if exchange.outcome is Outcome.ANSWERED:
            is_untouched = exchange.name == itself and itself not in expectation.shares
            key = NoDelivery.UNTOUCHED.value if is_untouched else exchange.name
            sources.setdefault(key, set()).add(exchange.seen_address)
        else:
            key = _WORDS.get(exchange.outcome, exchange.outcome.value)
        counts[key] += 1
    return counts, {key: frozenset(seen) for key, seen in sources.items()}


def _seen_text(counts: Counter[str], sources: Mapping[str, frozenset[str]], source: str) -> str:
    """`10.244.1.5:8080 151/300 masqueraded, 10.244.2.7:8080 149/300`, or `rejected`."""
    total = counts.total()
    return ", ".join(
        " ".join(
            (
                key,
                *(() if count == total else (f"{count}/{total}",)),
                *(("masqueraded",) if sources.get(key, frozenset()) - {source} else ()),
            )
        )
        for key, count in sorted(counts.items())
    )


def _count_problems(sample: Sample, expectation: Expectation) -> Iterator[str]:
    counts = sample.counts
    shares = {str(key): share for key, share in expectation.shares.items()}
    strange = sorted(key for key in counts if key not in shares)
    missing = [key for key, share in shares.items() if share and not counts.get(key)]
    total = sum(counts.values())
    yield from (f"{key}: not expected, seen {counts[key]} of {total} times" for key in strange)
    yield from (f"{key}: expected a share of {share_text(shares[key])}, never seen" for key in missing)
    if strange or missing:
        return
    if not sample.fits:
        yield f"shares: chance alone makes these counts with a probability of {sample.probability:.2g}"


def _source_problems(sources: Mapping[str, frozenset[str]], source: str, expectation: Expectation) -> Iterator[str]:
    wanted = expectation.masqueraded
    if wanted is None:
        return
    for key, seen in sources.items():
        is_expected = wanted if isinstance(wanted, bool) else key in wanted
        if is_expected and source in seen:
            yield f"{key}: expected a masqueraded source, seen the original {source}"
        if not is_expected and seen != {source}:
            yield f"{key}: expected the original source {source}, seen {', '.join(sorted(seen - {source}))}"


def _command(program: str, values: Mapping[str, str]) -> list[str]:
    words = [word.format_map(values) for word in shlex.split(program)]
    if not words:
        raise ValueError("it is empty")
    return words


@contextmanager
def _rules_written(case: GoldenCase, trial: Trial, netns: str) -> Iterator[None]:
    """Run the command; while the body runs its rules stand."""
    with tempfile.TemporaryDirectory(prefix="kproxy-ipt-conform-") as folder:
        values = {
            "netns": netns,
            "objects": str((case.folder / OBJECTS_FILE).absolute()),
            "config": str(_config_file(case, Path(folder))),
            "family": str(trial.families[0]) if len(trial.families) == 1 else "both",
            "backend": trial.backend,
            "node": case.node.name,
        }
        command = _command(trial.program or _OWN_PROGRAM, values)
        with Path(folder, "output").open("w+b") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            try:
                _wait(process, command[0], trial.settle_s, Path(folder, "output"))
                yield
            finally:
                _end(process)


def _wait(process: subprocess.Popen[bytes], name: str, settle_s: float, output: Path) -> None:
    """
    Wait until the rules stand.

    Raises:
        KernelError: The command failed, or does not end.
    """
    try:
        code = process.wait(settle_s or _PROGRAM_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        if settle_s:
            return
        raise KernelError(f"{name} does not end; say --settle SECONDS if it is a daemon") from error
    if code:
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise KernelError(f"{name} ended with {code}: {'; '.join(lines[-_LAST_LINES:])}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _config_file(case: GoldenCase, folder: Path) -> Path:
    """The configuration of the case, or one that says the name of the node and nothing else."""
    given = case.folder / CONFIG_FILE
    if given.exists():
        return given.absolute()
    made = folder / CONFIG_FILE
    fields = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "hostnameOverride": case.node.name,
    }
    made.write_bytes(msgspec.json.encode(fields))
    return made
