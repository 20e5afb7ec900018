"""`kproxy-ipt equiv`: two sides, an answer, and packets to prove it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import Result

Invoke = Callable[..., Result]

_GOLDEN = Path(__file__).parents[1] / "golden"
_NODE = ("--hostname-override", "n1", "--family", "ipv4")


@pytest.fixture
def rules(invoke: Invoke, examples: Path, tmp_path: Path) -> Path:
    """The rules of the examples as a save file."""
    path = tmp_path / "rules.txt"
    path.write_text(invoke("render", "--from", examples, *_NODE, "--form", "save").stdout)
    return path


@pytest.fixture
def changed(rules: Path) -> Path:
    """The same without the rule that sends node port 30080 on."""
    path = rules.with_name("changed.txt")
    lines = rules.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not (line.startswith("-A KUBE-NODEPORTS") and "--dport 30080" in line)]
    path.write_text("".join(kept))
    assert len(kept) < len(lines)
    return path


def test_file_and_objects_are_alike(invoke: Invoke, examples: Path, rules: Path) -> None:
    """What was rendered to a file acts as the objects it came from, whichever side is which."""
    for sides in ((rules, f"from:{examples}"), (f"from:{examples}", rules)):
        result = invoke("equiv", *sides, *_NODE)

        assert result.exit_code == 0, result.output
        assert "ipv4: both treat every packet alike" in result.stdout


def test_difference_is_shown_with_a_packet_and_both_outcomes(invoke: Invoke, rules: Path, changed: Path) -> None:
    """The packet, then a table with what A and B make of it; exit code 1."""
    result = invoke("equiv", rules, changed, *_NODE, "--node-address", "192.0.2.99")

    assert result.exit_code == 1
    assert "-> 192.0.2.99:30080, NEW, from outside" in result.stdout
    assert "in  share" in result.stdout
    lines = [line for line in result.stdout.splitlines() if line.startswith(("A ", "B "))]
    assert any("to the node" in line and line.startswith("B   100 %") for line in lines)
    assert any("masqueraded" in line and line.startswith("A ") for line in lines)


def test_json_holds_packets_outcomes_and_paths(invoke: Invoke, rules: Path, changed: Path) -> None:
    """One object: the answer by family, and for each difference both sides with shares that add up to 1."""
    result = invoke("equiv", rules, changed, *_NODE, "--output", "json")
    document = msgspec.json.decode(result.stdout)
    family = document["families"]["ipv4"]

    assert (document["command"], document["exit_code"], result.exit_code) == ("equiv", 1, 1)
    assert not family["equal"]
    for difference in family["differences"]:
        assert difference["packet"]["destination_port"] == 30080
        for side in ("a", "b"):
            assert sum(outcome["share_float"] for outcome in difference[side]) == pytest.approx(1)
            assert all(outcome["path"] for outcome in difference[side])


def test_one_side_may_be_standard_input(invoke: Invoke, rules: Path) -> None:
    """`-` is a save text on standard input; both sides cannot be."""
    assert invoke("equiv", "-", rules, *_NODE, stdin=rules.read_bytes()).exit_code == 0
    assert invoke("equiv", "-", "-", *_NODE).exit_code == 2


@pytest.mark.parametrize("wrong", ["no-such-file", "from:no-such-folder", "golden:no-such-case", "live:no-such-netns"])
def test_what_cannot_be_read_is_an_error_not_a_difference(invoke: Invoke, rules: Path, wrong: str) -> None:
    """Exit code 2 and a message; as an object too if one was asked for."""
    result = invoke("equiv", rules, wrong, *_NODE, "--output", "json")

    assert result.exit_code == 2
    assert "error: " in result.stderr
    assert msgspec.json.decode(result.stdout)["exit_code"] == 2


def test_rules_that_are_not_understood_leave_it_open(invoke: Invoke, rules: Path) -> None:
    """No difference found is not the same as none: exit code 2, and the reason."""
    other = rules.with_name("other.txt")
    other.write_text(f"{rules.read_text()}*mangle\n-A PREROUTING -m string --string x --algo bm -j DROP\nCOMMIT\n")
    result = invoke("equiv", rules, other, *_NODE)

    assert result.exit_code == 2
    assert "match 'string' is not understood" in result.stdout
    assert "no difference found, but there may be one" in result.stdout


def test_sides_of_different_families_cannot_be_compared(invoke: Invoke) -> None:
    """A file of IPv4 and one of IPv6 have nothing in common."""
    folder = _GOLDEN / "67-dual-stack"
    result = invoke("equiv", folder / "iptables.txt", folder / "ip6tables.txt")

    assert result.exit_code == 2
    assert "A holds IPv4, B holds IPv6" in result.stderr


def test_other_masquerade_bit_is_alike_if_marks_are_ignored(invoke: Invoke, examples: Path, rules: Path) -> None:
    """`--marks ignored` compares nodes that use different bits."""
    sides = (rules, f"from:{examples}")
    other_bit = (*_NODE, "--iptables-masquerade-bit", "15")

    assert invoke("equiv", *sides, *other_bit).exit_code == 1
    assert invoke("equiv", *sides, *other_bit, "--marks", "ignored").exit_code == 0


def test_address_that_is_none_is_wrong_usage(invoke: Invoke, rules: Path) -> None:
    """A name in the place of an address is named."""
    result = invoke("equiv", rules, rules, "--node-address", "n1")

    assert result.exit_code == 2
    assert "'n1' is not an IP address" in result.stderr


@pytest.mark.kernel
def test_kernel_acts_as_the_objects_say_after_a_sync(invoke: Invoke, examples: Path, lab: tuple[str, ...]) -> None:
    """`live:NETNS` after `sync --once` equals `from:PATH`; before, it does not."""
    netns = lab[lab.index("--netns") + 1]
    sides = (f"live:{netns}", f"from:{examples}", "--hostname-override", "n1")
    before = invoke("equiv", *sides, "--backend", "nft")
    assert invoke("sync", "--once", *lab).exit_code == 0
    after = invoke("equiv", *sides)

    assert (before.exit_code, after.exit_code) == (1, 0), after.output
