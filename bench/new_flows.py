"""
New flows: how long the first packet of a flow takes through the rules, and how many flows a second one processor opens.

Each variant of rules has a network namespace of its own, all endpoint addresses are local there, and a small C program
(`probe.c`) is client and server at once: no other thread and no second machine adds noise. Variants take turns, a block
of samples each, so that whatever else the machine does hits all alike; the first block of each is thrown away.

Beside the rules stand: the way to an endpoint without any rules, the same with connection tracking, and a ruleset of
nftables, written by hand in the shape of kube-proxy's nftables mode.
"""

import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.floor import CLUSTER_CIDR
from bench.nft_reference import reference_inputs
from bench.samples import Cell, Sample
from bench.whole_command import run_command
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.big_cluster import ENDPOINTS, Protocol, cluster, endpoint_addresses, service_address
from kproxy_ipt.testing.namespaces import temporary_namespace

NEW_FLOWS = "first packet of a new flow"
NO_RULES = "none"
CONNTRACK = "conntrack only"
REFERENCE = "nftables map, by hand"

_CLIENT = "10.250.0.1"
_TRACKED = "table ip t { chain c { type filter hook output priority 0; ct state new accept; }; }\n"
_MICROSECOND_NS = 1000


class Block(msgspec.Struct, frozen=True):
    """One block of samples: nanoseconds of each, and of all with what is between them."""

    took_ns: Sequence[int]
    whole_ns: int

    def samples(self, cell: Cell, number: int) -> Iterator[Sample]:
        """Its measures."""
        p99 = sorted(self.took_ns)[int(len(self.took_ns) * 0.99)]
        yield Sample(cell, "median", "us", number, statistics.median(self.took_ns) / _MICROSECOND_NS)
        yield Sample(cell, "p99", "us", number, p99 / _MICROSECOND_NS)
        yield Sample(cell, "flows a second", "", number, len(self.took_ns) * 1e9 / self.whole_ns)


class Probe:
    """The running C program of one variant."""

    def __init__(self, program: Path, protocol: Protocol, destinations: Sequence[tuple[str, int]]) -> None:
        """Start it in the namespace of the calling thread."""
        cpu = max(os.sched_getaffinity(0))
        self._process = subprocess.Popen(
            [str(program), protocol.lower(), _CLIENT, "8080", str(cpu)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._write("".join(f"{address} {port}\n" for address, port in destinations) + "\n")

    def _write(self, text: str) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the probe has no input")
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def block(self, samples: int) -> Block:
        """
        Measure.

        Raises:
            RuntimeError: The probe failed: a flow was not answered.
        """
        self._write(f"{samples}\n")
        took, _, whole = (self._process.stdout.readline() if self._process.stdout else "").partition("/")
        if not whole:
            raise RuntimeError(f"the probe failed: {self._process.communicate()[1]}")
        return Block([int(word) for word in took.split()], int(whole))

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def measure_new_flows(
    variants: Sequence[Cell], protocol: Protocol, blocks: int, samples: int, tell: Callable[[str], None]
) -> Iterator[Sample]:
    """
    Measure all variants, block by block in turn.

    Args:
        variants: As `flow_variants` gives them.
        protocol: UDP: a datagram and its answer; TCP: `connect`.
        blocks: Of each variant, beside the one that warms up.
        samples: In each block.
        tell: Is told what is being done.
    """
    with ExitStack() as stack:
        program = stack.enter_context(_compiled())
        probes: dict[Cell, Probe] = {}
        for cell in variants:
            tell(f"loading rules: {cell.backend}, {cell.dispatch}, {cell.services} Services")
            probes[cell] = stack.enter_context(_probe(program, cell, protocol))
        for number in range(-1, blocks):
            tell(f"new flows, block {number + 1} of {blocks}")
            for cell, probe in probes.items():
                block = probe.block(samples)
                if number >= 0:
                    yield from block.samples(cell, number)


def flow_variants(backends: Sequence[str], dispatches: Sequence[str], sizes: Sequence[int]) -> Sequence[Cell]:
    """Lines of reference, and the rules of all sizes; the smallest one in the linear form alone."""
    found = [_cell("-", NO_RULES, 1), _cell("-", CONNTRACK, 1)]
    for backend in backends:
        for size in sizes:
            some = dispatches if size > min(sizes) else ["linear"]
            found += [_cell(backend, dispatch, size) for dispatch in some]
    return [*found, *(_cell("nftables", REFERENCE, size) for size in sizes)]


def _cell(backend: str, dispatch: str, services: int) -> Cell:
    return Cell(NEW_FLOWS, backend, dispatch, services, ENDPOINTS)


@contextmanager
def _compiled() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "probe")
        source = Path(__file__).with_name("probe.c")
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(source)], check=True)
        yield program


@contextmanager
def _probe(program: Path, cell: Cell, protocol: Protocol) -> Iterator[Probe]:
    """The probe of a variant, its rules loaded."""
    with temporary_namespace("bench") as netns:
        with inside(netns):
            _set_up_addresses()
            _load_rules(cell, protocol)
            probe = Probe(program, protocol, _destinations(cell))
        try:
            yield probe
        finally:
            probe.close()


def _destinations(cell: Cell) -> Sequence[tuple[str, int]]:
    if cell.dispatch in (NO_RULES, CONNTRACK):
        return [(address, 8080) for number in range(100) for address in endpoint_addresses(number)]
    return [(service_address(number), 80) for number in range(cell.services)]


def _set_up_addresses() -> None:
    """Make the namespace client and all endpoints at once; flows are forgotten soon, so that they do not pile up."""
    _run(["ip", "address", "add", f"{_CLIENT}/32", "dev", "lo"])
    _run(["ip", "route", "add", "local", CLUSTER_CIDR, "dev", "lo"])
    _run(["ip", "route", "add", "10.96.0.0/12", "dev", "lo", "src", _CLIENT])


def _forget_flows_soon() -> None:
    for name in ("udp_timeout", "udp_timeout_stream", "tcp_timeout_close", "tcp_timeout_time_wait"):
        path = Path(f"/proc/sys/net/netfilter/nf_conntrack_{name}")
        if path.exists():
            path.write_text("2", encoding="ascii")


def _load_rules(cell: Cell, protocol: Protocol) -> None:
    if cell.dispatch == CONNTRACK:
        _run(["nft", "-f", "-"], _TRACKED)
    elif cell.dispatch == REFERENCE:
        for text in reference_inputs(cell.services, CLUSTER_CIDR, protocol):
            _run(["nft", "-f", "-"], text)
    elif cell.dispatch != NO_RULES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "cluster.json")
            path.write_bytes(cluster(cell.services, protocol=protocol))
            run_command(path, cell.backend, cell.dispatch)
    _forget_flows_soon()


def _run(arguments: Sequence[str], stdin: str = "") -> None:
    completed = SubprocessRunner().run(arguments, stdin=stdin)
    if completed.exit_status != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {completed.stderr[:2000]}")
