"""`graph`: pictures from files, manifests and the kernel."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service

Invoke = Callable[..., Result]

_ROOT = Path(__file__).parents[2]
_PODS = ("--cluster-cidr", "10.244.0.0/16", "--hostname-override", "n1")


@pytest.fixture
def crowd(tmp_path: Path) -> Path:
    """A save file with more chains than anybody wants to see."""
    one = service("web")
    desired = desired_for(one, endpoint_slice(one, [f"10.244.1.{number}" for number in range(1, 221)]))
    path = tmp_path / "crowd.txt"
    path.write_text(render_save(with_base_chains(desired)))
    return path


def test_picture_of_the_documentation_is_up_to_date(invoke: Invoke, examples: Path) -> None:
    """`docs/pictures/web.svg` is what the command prints today."""
    result = invoke("graph", "svc/demo/web", "--from", examples, *_PODS)

    assert result.exit_code == 0
    assert (_ROOT / "docs" / "pictures" / "web.svg").read_text() == result.stdout


@pytest.mark.parametrize(("form", "start"), [("svg", "<svg "), ("dot", 'digraph "'), ("mermaid", "flowchart LR\n")])
def test_each_form_is_its_language(form: str, start: str, invoke: Invoke, examples: Path) -> None:
    """The picture alone is on standard output."""
    assert invoke("graph", "svc/demo/web", "--from", examples, "--form", form).stdout.startswith(start)


def test_picture_can_be_written_into_a_file(invoke: Invoke, examples: Path, tmp_path: Path) -> None:
    """`--write` prints nothing; a file that cannot be written is told."""
    target = tmp_path / "web.svg"
    result = invoke("graph", "svc/demo/web", "--from", examples, "--write", target)

    assert (result.exit_code, result.stdout) == (0, "")
    assert ET.parse(target).getroot().tag.endswith("svg")
    assert invoke("graph", "--from", examples, "--write", tmp_path / "no" / "web.svg").exit_code == 2


def test_rules_can_come_from_a_pipe(invoke: Invoke, examples: Path) -> None:
    """The family is that of the text, whichever program printed it."""
    for family, address in (("ipv4", "10.96.0.80"), ("ipv6", "fd00:10:96::80")):
        text = invoke("render", "--from", examples, "--form", "save", "--family", family).stdout
        result = invoke("graph", "svc/demo/web", "--rules", "-", stdin=text)

        assert f"tcp 80 to {address}<" in result.stdout


def test_nodes_of_endpoints_are_named_where_objects_tell(invoke: Invoke, examples: Path) -> None:
    """Manifests know more than rules."""
    assert "on node n2" in invoke("graph", "svc/demo/web", "--from", examples).stdout


def test_json_holds_nodes_and_edges(invoke: Invoke, examples: Path) -> None:
    """Every edge joins two nodes that are there."""
    document = json.loads(invoke("graph", "--from", examples, "--output", "json").stdout)
    keys = {node["key"] for node in document["nodes"]}

    assert {end for edge in document["edges"] for end in (edge["source"], edge["target"])} <= keys
    assert document["family"] == "ipv4"
    assert document["chains"] > 20


def test_crowded_picture_is_refused_unless_wanted(invoke: Invoke, crowd: Path) -> None:
    """More than 200 chains: the number is told, `--all` draws them."""
    refused = invoke("graph", "--rules", crowd)

    assert refused.exit_code == 2
    assert "chains are too many for a picture" in refused.stderr
    assert invoke("graph", "--rules", crowd, "--all").stdout.count("KUBE-SEP-") > 220


def test_unknown_service_is_an_error(invoke: Invoke, examples: Path) -> None:
    """An empty picture would look like an answer."""
    result = invoke("graph", "svc/demo/nothing", "--from", examples)

    assert result.exit_code == 5
    assert "no rule is about service demo/nothing" in result.stderr


@pytest.mark.parametrize(
    "words", [("web",), ("svc/web",), ("--from", "a", "--netns", "b"), ("--from", "a", "--rules", "b")]
)
def test_wrong_usage_is_told(words: tuple[str, ...], invoke: Invoke) -> None:
    """A name without namespace, and two places for the rules."""
    assert invoke("graph", *words).exit_code == 2


@pytest.mark.kernel
def test_live_rules_give_the_picture_of_their_objects(invoke: Invoke, lab: tuple[str, ...], netns: str) -> None:
    """What stands in the kernel is drawn, too."""
    assert invoke("sync", "--once", *lab, "--cluster-cidr", "10.244.0.0/16").exit_code == 0
    live = invoke("graph", "svc/demo/web", "--netns", netns)
    built = invoke("graph", "svc/demo/web", *lab[:4], "--cluster-cidr", "10.244.0.0/16")

    assert live.exit_code == 0
    assert live.stdout.count("<text") == built.stdout.count("<text") - 3
