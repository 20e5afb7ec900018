"""`trace`: where rules come from, how packets are named, and what is printed."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]

_SAVES = Path(__file__).parents[1] / "ruleset" / "saves"
_NODE = ("--hostname-override", "n1")


@pytest.fixture
def trace(invoke: Invoke, examples: Path) -> Invoke:
    """Trace through the rules of the examples."""

    def run(*options: str) -> Result:
        return invoke("trace", "--from", examples, *_NODE, *options)

    return run


def test_text_shows_the_path_and_a_table(trace: Invoke) -> None:
    """Rules by table, shares in the margin, then what becomes of the packet."""
    result = trace("--src", "10.244.1.11", "--dst", "svc/demo/web")

    assert result.exit_code == 0
    assert "  PREROUTING nat\n" in result.stdout
    assert "(demo/web:http cluster IP)" in result.stdout
    assert result.stdout.count("33.3 %  to endpoint") == 3
    assert "10.244.1.11 (kept)  demo/web:http" in result.stdout


def test_json_holds_every_path(trace: Invoke) -> None:
    """Shares as text and as numbers; the parts add up to the whole."""
    result = trace("--src", "10.244.1.11", "--dst", "svc/demo/web:http", "--output", "json")
    document = json.loads(result.stdout)

    assert [outcome["share"] for outcome in document["outcomes"]] == ["1/3"] * 3
    assert sum(outcome["share_float"] for outcome in document["outcomes"]) == pytest.approx(1)
    assert sum(Fraction(path["share"]) for path in document["paths"]) == 1
    assert {outcome["service_port"] for outcome in document["outcomes"]} == {"demo/web:http"}
    assert document["packet"]["destination_port"] == 80
    assert all(path["steps"][0]["hook"] == "PREROUTING" for path in document["paths"])


def test_packets_of_the_node_start_in_output(trace: Invoke) -> None:
    """`--from-node` alone takes the node's own address; `node` is an address too."""
    own = trace("--from-node", "--dst", "svc/demo/web")
    other = trace("--src", "203.0.113.9", "--dst", "node", "--dport", "30080")

    assert "OUTPUT nat" in own.stdout
    assert own.stdout.startswith("tcp 192.0.2.10 -> ")
    assert "tcp 203.0.113.9 -> 192.0.2.10:30080" in other.stdout
    assert "node (masqueraded)" in other.stdout


def test_a_refusal_says_why(invoke: Invoke, tmp_path: Path) -> None:
    """The comment of the rule that refused stands in the table."""
    web = tmp_path / "web.yaml"
    web.write_text(
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop},"
        " spec: {clusterIP: 10.96.0.9, ports: [{port: 80, protocol: TCP}]}}\n"
    )
    result = invoke("trace", "--from", web, "--src", "10.0.0.1", "--dst", "svc/shop/web", "--node-address", "10.9.9.9")

    assert "refused (icmp-port-unreachable)" in result.stdout
    assert "shop/web has no endpoints" in result.stdout


def test_ipv6_follows_from_the_addresses(trace: Invoke) -> None:
    """No option names the family."""
    result = trace("--src", "fd00:10:244:1::11", "--dst", "svc/demo/web", "--output", "json")
    document = json.loads(result.stdout)

    assert document["packet"]["family"] == "ipv6"
    assert {":" in outcome["destination"] for outcome in document["outcomes"]} == {True}


@pytest.mark.parametrize("path", ["-", str(_SAVES / "ufw.ipv4.txt")])
def test_rules_of_a_file_need_no_objects(invoke: Invoke, path: str) -> None:
    """From a file or from standard input; a foreign DROP is the verdict, and assumptions are notes."""
    flow = ("--src", "203.0.113.9", "--dst", "node", "--dport", "8080", "--node-address", "192.0.2.10")
    result = invoke("trace", "--rules", path, *flow, stdin=(_SAVES / "ufw.ipv4.txt").read_bytes())

    assert result.exit_code == 0
    assert "dropped  192.0.2.10:8080  203.0.113.9 (kept)  filter INPUT policy DROP" in result.stdout
    assert "the incoming interface is not given" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "*filter\nnonsense\nCOMMIT\n",
        "*filter\n:FORWARD ACCEPT\n-A FORWARD -j\nCOMMIT\n",
        "*filter\n:FORWARD ACCEPT\n:A -\n-A FORWARD -j A\n-A A -j A\nCOMMIT\n",
    ],
)
def test_a_file_that_is_no_ruleset_is_a_source_error(invoke: Invoke, text: str) -> None:
    """Broken lines, and chains that the kernel would refuse, are the fault of the file: exit code 5."""
    result = invoke("trace", "--rules", "-", "--src", "10.0.0.1", "--dst", "10.0.0.2", stdin=text.encode())

    assert result.exit_code == 5
    assert "error: " in result.stderr


def test_a_file_that_is_not_there_is_a_source_error(invoke: Invoke) -> None:
    """Named with the option that asked for it."""
    result = invoke("trace", "--rules", "/no/such/file", "--src", "10.0.0.1", "--dst", "10.0.0.2")

    assert result.exit_code == 5
    assert result.stderr == "error: --rules /no/such/file: No such file or directory\n"


def test_what_the_node_takes_is_said(invoke: Invoke) -> None:
    """A packet that no rule sends on ends at the node itself, and is no connection to an endpoint."""
    rules = "*filter\n:INPUT DROP\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\nCOMMIT\n"
    flow = ("--src", "203.0.113.9", "--dst", "node", "--dport", "22", "--node-address", "192.0.2.10")
    result = invoke("trace", "--rules", "-", *flow, stdin=rules.encode())

    assert "accepted by the node" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--src", "10.0.0.1", "--dst", "10.0.0.2", "--node-address", "here"), "'here' is not an IP address"),
        (("--dst", "10.0.0.1"), "Missing option '--src'"),
        (("--src", "10.0.0.1"), "Missing option '--dst'"),
        (("--src", "10.0.0.1", "--dst", "fd00::1"), "different families"),
        (("--src", "somebody", "--dst", "10.0.0.1"), "'somebody' is neither an address"),
        (("--src", "10.0.0.1", "--dst", "svc/demo/nothing"), "no rule names that service"),
        (("--src", "10.0.0.1", "--dst", "svc/demo/web:ftp"), "its ports are http (80)"),
        (("--src", "10.0.0.1", "--dst", "10.0.0.2", "--mark", "red"), "not a number"),
        (("--src", "10.0.0.1", "--dst", "10.0.0.2", "--rules", "x"), "exclude each other"),
    ],
)
def test_what_makes_no_sense_is_said(trace: Invoke, options: tuple[str, ...], message: str) -> None:
    """Exit code 2, and the words of the option."""
    result = trace(*options)

    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.kernel
@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_rules_of_the_kernel_are_the_default(invoke: Invoke, lab: tuple[str, ...], netns: str, backend: str) -> None:
    """What a sync wrote is what is walked, in the namespace of the option."""
    options = [backend if option == "nft" else option for option in lab]
    assert invoke("sync", "--once", *options).exit_code == 0

    flow = ("--src", "10.244.1.11", "--dst", "svc/demo/web", "--netns", netns, "--backend", backend)
    result = invoke("trace", *flow)

    assert f"rules: kernel, {backend}" in result.stdout
    assert result.stdout.count("33.3 %  to endpoint") == 3
