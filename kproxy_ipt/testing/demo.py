"""
`make demo`: the example Services at work, with real connections, and a table of who answered how often.

The lab stands for a cluster of two nodes. `kproxy-ipt sync --once` writes the rules of `manifests/examples` into its
node; then clients connect, and the shares that were counted are held against the promised ones.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich import box
from rich.bar import Bar
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kproxy_ipt.errors import KernelError
from kproxy_ipt.testing.lab import NODE_NAME, Lab, Place
from kproxy_ipt.testing.shares import LEAST_PROBABILITY, sample_shares, shares_probability
from kproxy_ipt.testing.sockets import Protocol
from kproxy_ipt.testing.topology import CLUSTER_CIDRS
from kproxy_ipt.testing.traffic import Exchange, Outcome, Traffic

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
PODS = ("podA", "podB", "web-1", "web-2")
_THIRDS = {"web-1": 1.0, "web-2": 1.0, "web-3": 1.0}
_LOCAL = {"web-1": 1.0, "web-2": 1.0, "web-3": 0.0}
_HALVES = {"dns-1": 1.0, "dns-2": 1.0}
_STRANGERS = tuple(f"198.18.0.{number}" for number in range(1, 21))
_COUNT = 900
"""Connections of a round; see `shares.py`."""
_PARALLEL = 64
_BAR_WIDTH = 24
_SYNC_TIMEOUT_S = 60.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """
    One way into a Service, and what must come of it.

    Attributes:
        title: What a person would say.
        client: Label of the place that connects: `client` or a pod.
        address: Where it connects to.
        port: Where it connects to.
        expected: Shares by name; empty means that every packet is dropped.
        sticky: Whether all connections must go to one and the same of *expected*.
        sources: Source addresses, where not the own one of the client.
        seen: The source address that the pods must see.
    """

    title: str
    client: str
    address: str
    port: int
    expected: Mapping[str, float]
    seen: str = ""
    protocol: Protocol = "tcp"
    sticky: bool = False
    sources: Sequence[str] = ()


SCENARIOS = (
    Scenario(
        title="ClusterIP, from a pod",
        client="podA",
        address="10.96.0.80",
        port=80,
        expected=_THIRDS,
        seen="10.244.1.11",
    ),
    Scenario(
        title="ClusterIP over IPv6, from a pod",
        client="podA",
        address="fd00:10:96::80",
        port=80,
        expected=_THIRDS,
        seen="fd00:10:244:1::11",
    ),
    Scenario(
        title="UDP, from a pod",
        client="podB",
        address="10.96.0.53",
        port=53,
        expected=_HALVES,
        seen="10.244.1.12",
        protocol="udp",
    ),
    Scenario(
        title="session affinity, from a pod",
        client="podB",
        address="10.96.0.83",
        port=80,
        expected=_THIRDS,
        seen="10.244.1.12",
        sticky=True,
    ),
    Scenario(title="NodePort, from outside", client="client", address="192.0.2.10", port=30080, expected=_THIRDS),
    Scenario(
        title="NodePort with policy Local, from outside",
        client="client",
        address="192.0.2.10",
        port=30081,
        expected=_LOCAL,
        seen="192.0.2.50",
    ),
    Scenario(
        title="LoadBalancer, from its source range", client="client", address="192.0.2.200", port=80, expected=_THIRDS
    ),
    Scenario(
        title="LoadBalancer, from elsewhere",
        client="client",
        address="192.0.2.200",
        port=80,
        expected={},
        sources=_STRANGERS,
    ),
)


class Result(msgspec.Struct, frozen=True):
    """What became of a scenario; `problem` is "" where it is as it must be."""

    scenario: Scenario
    traffic: Traffic
    problem: str


def serve_everything(lab: Lab) -> None:
    """Start the servers that the endpoints of the examples stand for, in a lab with `PODS`."""
    for name in ("web-1", "web-2"):
        lab.pod(name).serve(8080)
    lab.remote.serve(8080, name="web-3")
    for name, address in (("dns-1", "10.244.2.53"), ("dns-2", "10.244.2.54"), ("dns-3", "10.244.2.55")):
        lab.remote.serve(5353, protocol="udp", name=name, addresses=[address])


def measure(lab: Lab, scenario: Scenario) -> Result:
    """Send the connections of a scenario: 20 where they must be dropped, else 900, or more until shares are clear."""
    if scenario.sticky or not scenario.expected:
        traffic = _send(lab, scenario)
    else:
        exchanges: list[Exchange] = []

        def ask() -> Counter[str]:
            more = _send(lab, scenario).exchanges
            exchanges.extend(more)
            return Counter(each.name or each.outcome.value for each in more)

        sample_shares(ask, scenario.expected)
        traffic = Traffic(tuple(exchanges))
    return Result(scenario, traffic, problem_of(scenario, traffic))


def _send(lab: Lab, scenario: Scenario) -> Traffic:
    return _place(lab, scenario.client).send(
        scenario.address,
        scenario.port,
        protocol=scenario.protocol,
        count=_COUNT if scenario.expected else len(scenario.sources),
        sources=scenario.sources,
        timeout_s=3.0 if scenario.expected else 0.5,
        # First connections of a client that begin together are each balanced before the other is remembered.
        parallel=1 if scenario.sticky else _PARALLEL,
    )


def problem_of(scenario: Scenario, traffic: Traffic) -> str:
    """What is wrong with the traffic of a scenario, in a few words; "" if nothing is."""
    wanted = Outcome.ANSWERED if scenario.expected else Outcome.TIMEOUT
    if failures := {outcome.value: count for outcome, count in traffic.outcomes.items() if outcome is not wanted}:
        return f"expected only {wanted.value}, got {failures}"
    if not scenario.expected:
        return ""
    if scenario.seen and set(traffic.seen_addresses) != {scenario.seen}:
        return f"pods must see {scenario.seen}, not {sorted(traffic.seen_addresses)}"
    if scenario.sticky:
        return "" if len(traffic.names) == 1 and set(traffic.names) <= set(scenario.expected) else "not sticky"
    if shares_probability(traffic.names, scenario.expected) < LEAST_PROBABILITY:
        return "shares are off"
    return ""


def report_of(results: Sequence[Result]) -> Group:
    """What the demo prints: a table for each scenario with a line for each name, within 80 columns."""
    return Group(*(part for result in results for part in (_heading(result), _table(result))))


def _heading(result: Result) -> Text:
    scenario = result.scenario
    seen = " and ".join(sorted(result.traffic.seen_addresses))
    heading = Text.assemble(
        "\n",
        (scenario.title, "bold"),
        (f" to {scenario.address} {scenario.protocol.upper()} port {scenario.port}", "dim"),
    )
    return heading.append(f"\n  pods see {seen}", "dim") if seen else heading


def _table(result: Result) -> Table:
    scenario, names, total = result.scenario, result.traffic.names, len(result.traffic.exchanges)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title, width in (("answered by", 12), ("times", 6), ("share", 7), ("", _BAR_WIDTH), ("expected", 12)):
        table.add_column(title, width=width, justify="right" if title in {"times", "share", "expected"} else "left")
    for name in sorted({*scenario.expected, *names}):
        share = names[name] / total
        bar = Bar(1.0, 0.0, share, color="green" if not result.problem else "red")
        table.add_row(name, str(names[name]), f"{share:.1%}", bar, _expectation(scenario, name))
    if unanswered := total - sum(names.values()):
        expected = "all" if not scenario.expected else "none"
        table.add_row("nobody", str(unanswered), f"{unanswered / total:.1%}", "", expected)
    return table


def _expectation(scenario: Scenario, name: str) -> str:
    if scenario.sticky:
        return "all or none"
    weight = sum(scenario.expected.values()) or 1.0
    return f"{scenario.expected.get(name, 0.0) / weight:.1%}"


def _place(lab: Lab, label: str) -> Place:
    return lab.client if label == "client" else lab.pod(label)


def _sync(lab: Lab) -> None:
    """Let the command line write the rules of the examples into the node of the lab."""
    program = Path(sys.executable).with_name("kproxy-ipt")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(_configuration(), encoding="utf-8")
        command = [str(program), "sync", "--once", "--from", str(EXAMPLES), "--config", str(config)]
        command += ["--netns", lab.node.netns, "--hostname-override", NODE_NAME]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SYNC_TIMEOUT_S, check=False)
    if done.returncode:
        raise KernelError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _configuration() -> str:
    return (
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"
        "kind: KubeProxyConfiguration\n"
        f"clusterCIDR: {','.join(CLUSTER_CIDRS.values())}\n"
    )


@contextmanager
def _step(console: Console, text: str) -> Iterator[None]:
    began_s = time.monotonic()
    with console.status(text):
        yield
    console.print(f"[green]done[/] {text} [dim]({time.monotonic() - began_s:.2f} s)[/]")


def _demonstrate(console: Console) -> Sequence[Result]:
    with Lab(PODS) as lab:
        serve_everything(lab)
        console.print(f"[green]done[/] lab of {len(lab.pods) + 4} network namespaces")
        with _step(console, f"kproxy-ipt sync --once --from manifests/examples --netns {lab.node.netns}"):
            _sync(lab)
        results = []
        for scenario in SCENARIOS:
            with _step(console, scenario.title):
                results.append(measure(lab, scenario))
    console.print("[green]done[/] lab removed")
    return results


def main() -> int:
    """
    Run the demo and print its table on standard output.

    Returns:
        0, or 1 where the lab or the rules could not be made, a connection failed or a share is off.
    """
    console = Console()
    if not EXAMPLES.is_dir():
        console.print("The demo runs in a checkout of the project: it reads manifests/examples.")
        return 1
    try:
        results = _demonstrate(console)
    except (KernelError, OSError, subprocess.TimeoutExpired) as error:
        console.print(Text(f"The demo could not run: {error}", "red"))
        return 1
    console.print(report_of(results))
    problems = [f"{result.scenario.title}: {result.problem}" for result in results if result.problem]
    for problem in problems:
        console.print(Text(problem, "red"))
    console.print(f"\n{len(results) - len(problems)} of {len(results)} ways into the Services behave as promised.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
