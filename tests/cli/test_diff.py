"""`diff`: two rule sets from anywhere, by meaning or as text."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]

_GOLDEN = Path(__file__).parents[1] / "golden"
_TWO, _THREE = _GOLDEN / "03-cluster-ip-two-endpoints", _GOLDEN / "04-cluster-ip-three-endpoints"


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """The rules of two endpoints, with other shares and a chain of somebody else."""
    text = (_TWO / "iptables.txt").read_text()
    text = text.replace("--probability 0.50000000000", "--probability 0.25000000000")
    path = tmp_path / "more.txt"
    path.write_text(text.replace("*nat\n", "*nat\n:CNI-X -\n-A CNI-X -j RETURN\n"))
    return path


def test_same_rules_are_the_same(invoke: Invoke) -> None:
    """Exit code 0, and how much was compared."""
    result = invoke("diff", f"golden:{_TWO}", f"golden:{_TWO}")

    assert result.exit_code == 0
    assert result.stdout == (
        "ipv4: both mean the same (1 service port compared)\nipv6: both mean the same (0 service ports compared)\n"
    )


def test_difference_is_told_by_service(invoke: Invoke, more: Path) -> None:
    """Exit code 1, and what changed in words."""
    result = invoke("diff", _TWO / "iptables.txt", more)

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "ipv4 default/web:http/tcp changed",
        "  share of endpoint 10.244.1.5:8080: 1/2 -> 1/4",
        "  share of endpoint 10.244.2.7:8080: 1/2 -> 3/4",
        "ipv4: 1 changed (1 service port compared)",
    ]


def test_foreign_chains_are_shown_if_asked_for(invoke: Invoke, more: Path) -> None:
    """With their rules, `+` for those of the second side."""
    result = invoke("diff", _TWO / "iptables.txt", more, "--foreign")

    assert "ipv4 foreign chain nat CNI-X\n  + -A CNI-X -j RETURN\n" in result.stdout
    assert "1 other chain different" in result.stdout


def test_text_is_a_unified_diff(invoke: Invoke, more: Path) -> None:
    """Of the canonical texts, without foreign chains unless asked for."""
    own, both = (invoke("diff", f"golden:{_TWO}", more, "--text", *words) for words in ((), ("--foreign",)))

    assert own.exit_code == both.exit_code == 1
    assert own.stdout.startswith(f"--- golden:{_TWO}\n+++ {more}\n@@ ")
    assert [line[:20] for line in own.stdout.splitlines()[3:] if line[0] in "+-"] == [
        "--A KUBE-SVC-CDGGSHY",
        "+-A KUBE-SVC-CDGGSHY",
    ]
    assert "+:CNI-X -\n" in both.stdout


def test_json_holds_what_the_text_says(invoke: Invoke, more: Path) -> None:
    """One object; with `--text` the lines are in it."""
    result = invoke("diff", _TWO / "iptables.txt", more, "--output", "json", "--text")
    document = json.loads(result.stdout)
    family = document["families"]["ipv4"]

    assert (document["differs"], document["exit_code"], result.exit_code) == (True, 1, 1)
    assert family["services"][0]["kind"] == "changed"
    assert family["foreign"] == []
    assert family["text"][0].startswith("--- ")


def test_manifests_are_compared_with_what_was_recorded(invoke: Invoke) -> None:
    """The configuration of the options decides what is built."""
    sides = (f"golden:{_THREE}", f"from:{_THREE / 'objects.yaml'}")
    options = ("--hostname-override", "node1")

    assert invoke("diff", *sides, *options, "--config", _THREE / "config.yaml").exit_code == 0
    assert "masquerade traffic to the cluster IP" in invoke("diff", *sides, *options).stdout


def test_behaviour_is_told_if_asked_for(invoke: Invoke, more: Path) -> None:
    """Other shares are another behaviour."""
    lines = {
        path: invoke("diff", _TWO / "iptables.txt", path, "--behaviour").stdout.splitlines()
        for path in (more, _TWO / "iptables.txt")
    }
    text = invoke("diff", _TWO / "iptables.txt", more, "--behaviour", "--output", "json").stdout

    assert [found[-1] for found in lines.values()] == [
        "ipv4: there are packets that are treated differently",
        "ipv4: every packet is treated alike",
    ]
    assert json.loads(text)["families"]["ipv4"]["behaviour"] == "different"


def test_standard_input_is_a_side(invoke: Invoke) -> None:
    """One of the two, not both."""
    text = (_TWO / "iptables.txt").read_text()

    assert invoke("diff", "-", f"golden:{_TWO}", stdin=text).exit_code == 0
    assert invoke("diff", f"golden:{_TWO}", "-", stdin=text).exit_code == 0
    assert invoke("diff", "-", "from:-", stdin=text).exit_code == 2


@pytest.mark.parametrize(
    "side", ["no/such/file", "golden:no/such/folder", "from:no/such/file", "live:nosuchnetns", "-"]
)
def test_side_that_cannot_be_read_leaves_all_open(side: str, invoke: Invoke) -> None:
    """Exit code 2; nothing is called the same or different. Nothing on standard input is a pipe that failed."""
    result = invoke("diff", f"golden:{_TWO}", side)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error: " in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "found bytes that are no UTF-8"), (b"\n", "found nothing, expected the output of iptables-save")],
)
def test_file_that_is_no_text_leaves_all_open(content: bytes, message: str, invoke: Invoke, tmp_path: Path) -> None:
    """A pipe that failed, or a file of another kind, is never an empty kernel."""
    path = tmp_path / "rules"
    path.write_bytes(content)
    result = invoke("diff", f"golden:{_TWO}", path)

    assert result.exit_code == 2
    assert f"{path}: {message}" in result.stderr


def test_side_without_a_path_is_wrong_usage(invoke: Invoke) -> None:
    """The words of a side are those of its kind."""
    result = invoke("diff", "golden:", f"golden:{_TWO}")

    assert result.exit_code == 2
    assert "'golden:' names no path, expected golden:PATH" in result.stderr


def test_rules_of_the_other_family_are_not_left_out_in_silence(invoke: Invoke) -> None:
    """A file that `--family` rules out is an error, not a side without rules."""
    path = _GOLDEN / "68-ipv6-only" / "ip6tables.txt"
    result = invoke("diff", path, path, "--family", "ipv4")

    assert result.exit_code == 2
    assert f"{path}: the rules are of IPv6, which was not asked for (--family)" in result.stderr


def test_long_difference_is_cut(invoke: Invoke, tmp_path: Path) -> None:
    """A chain with many other lines is not told line by line, and where all of them are is."""
    path = tmp_path / "rules"
    rules = "".join(f"-A CNI-X -s 10.9.{number}.0/24 -j RETURN\n" for number in range(40))
    text = (_TWO / "iptables.txt").read_text()
    path.write_text(text.replace("*nat\n", "*nat\n:CNI-X - [0:0]\n", 1).replace("COMMIT\n", "@", 1))
    nat = path.read_text().replace("COMMIT\n", rules + "COMMIT\n").replace("@", "COMMIT\n")
    path.write_text(nat)
    shown = invoke("diff", f"golden:{_TWO}", path, "--foreign").stdout

    assert "more (--output json has them all)" in shown
    assert shown.count("-A CNI-X") < 40


def test_file_that_holds_no_rules_leaves_all_open(invoke: Invoke, tmp_path: Path) -> None:
    """The error names file and line."""
    path = tmp_path / "notes.txt"
    path.write_text("*nat\nhello\n")
    result = invoke("diff", f"golden:{_TWO}", path)

    assert result.exit_code == 2
    assert f"{path}: line 2" in result.stderr


def test_families_must_meet(invoke: Invoke) -> None:
    """Rules of IPv4 and rules of IPv6 cannot be compared."""
    dual = _GOLDEN / "67-dual-stack"
    result = invoke("diff", dual / "iptables.txt", dual / "ip6tables.txt")

    assert result.exit_code == 2
    assert "IPv4" in result.stderr
    assert invoke("diff", dual / "ip6tables.txt", f"golden:{dual}").stdout.startswith("ipv6: both mean the same")


@pytest.mark.kernel
def test_live_rules_are_those_of_their_manifests(
    invoke: Invoke, lab: tuple[str, ...], netns: str, iptables: Callable[..., str]
) -> None:
    """After a sync both mean the same; a rule that is taken away is missed."""
    examples = lab[1]
    options = (f"live:{netns}", f"from:{examples}", "--hostname-override", "n1", "--backend", "nft")
    assert invoke("sync", "--once", *lab).exit_code == 0
    same = invoke("diff", *options)
    iptables("-t", "nat", "-D", "POSTROUTING", "1")
    different = invoke("diff", *options)

    assert same.exit_code == 0, same.output
    assert different.exit_code == 1
    assert "ipv4 fixed chain nat POSTROUTING\n  + -A POSTROUTING " in different.stdout
