"""Flow tables held against the kernel: our own rules pass, wrong ones are caught."""

import shlex
import sys
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.testing.conform import ConformResult, Trial, cases_with_flows, conform_case
from kproxy_ipt.testing.sockets import sctp_available

pytestmark = pytest.mark.kernel

_TESTS = Path(__file__).parents[1]
_SYNC = (
    f"{shlex.quote(str(Path(sys.executable).with_name('kproxy-ipt')))} sync --once --from {{objects}} "
    "--config {config} --netns {netns} --backend {backend}"
)
_CASES = [str(folder.relative_to(_TESTS)) for folder in cases_with_flows([_TESTS / "golden", _TESTS / "flows"])]


def _held(case: str, program: str = "", *, backend: str = "nft") -> ConformResult:
    return conform_case(_TESTS / case, Trial(program=program, backend=backend))


def _shell(script: str) -> str:
    return f"sh -c {shlex.quote(script)}"


def _problems(result: ConformResult) -> list[str]:
    assert result.errors == ()
    return [problem for flow in result.flows for problem in flow.problems]


@pytest.mark.parametrize("case", _CASES)
def test_our_rules_do_what_the_table_says(case: str, backend: str) -> None:
    """Every flow of the table ends where it should, on both backends; only SCTP may be left out."""
    result = _held(case, backend=backend)

    assert _problems(result) == []
    assert result.flows
    assert all("SCTP" in flow.skipped and not sctp_available() for flow in result.flows if flow.skipped)


def test_a_program_that_writes_nothing_leaves_packets_untouched() -> None:
    """What should reach an endpoint is seen to reach the address itself."""
    result = _held("flows/08-target-port", "true")

    assert [flow.seen for flow in result.flows] == ["untouched", "untouched"]
    assert [bool(flow.problems) for flow in result.flows] == [True, False]


def test_missing_masquerade_is_caught() -> None:
    """Endpoints that are reached from the wrong source address are a difference, and the only one here."""
    flush = "ip netns exec {netns} iptables-nft -t nat -F KUBE-POSTROUTING"

    result = _held("golden/03-cluster-ip-two-endpoints", _shell(f"{_SYNC} && {flush}"))

    assert _problems(result)
    assert all("expected a masqueraded source, seen the original" in text for text in _problems(result))


def test_wrong_shares_are_caught() -> None:
    """Nine of ten connections to one of two endpoints are no halves."""
    inside = "ip netns exec {netns}"
    bend = (
        f"{inside} iptables-nft-save | sed 's/probability 0.5[0-9]*/probability 0.9/' | {inside} iptables-nft-restore"
    )

    result = _held("golden/16-several-slices-one-empty", _shell(f"{_SYNC} && {bend}"))

    assert [text.partition(" makes")[0] for text in _problems(result)] == ["shares: chance alone"]


def test_reject_and_drop_are_told_apart() -> None:
    """A rule that drops what should be refused is caught."""
    drop = "ip netns exec {netns} iptables-nft -I OUTPUT -p icmp -j DROP"

    result = _held("flows/27-terminating-cluster-none-serving", _shell(f"{_SYNC} && {drop}"))

    assert [flow.seen for flow in result.flows] == ["dropped", "dropped"]
    assert all(flow.problems for flow in result.flows)


def test_a_failed_program_is_an_error_with_its_words() -> None:
    """Rules that do not stand cannot be judged."""
    result = _held("flows/08-target-port", _shell("echo no such table >&2; exit 3"))

    assert result.flows == ()
    assert result.errors[0].endswith("sh ended with 3: no such table")


def test_a_program_that_goes_on_is_ended_after_the_flows(tmp_path: Path) -> None:
    """A daemon is given time to settle, and does not outlive the trial."""
    trial = Trial(program=_shell(f"echo $$ > {tmp_path}/pid; exec sleep 600"), settle_s=0.5)

    result = conform_case(_TESTS / "golden/25-service-proxy-name-label", trial)

    assert [flow.seen for flow in result.flows] == ["untouched", "untouched"]
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_flows_of_another_family_are_left_out() -> None:
    """Where one family is wanted the rules and the flows are those of that family."""
    trial = Trial(families=(Family.IPV6,))

    result = conform_case(_TESTS / "golden/67-dual-stack", trial)

    assert _problems(result) == []
    assert [flow.name.partition("-> ")[2] for flow in result.flows] == ["[fd00:10:96::10]:80/tcp"] * 2


def test_shares_of_affine_services_are_those_of_first_connections() -> None:
    """One client that is forgotten before each connection meets every endpoint as often as the table says."""
    result = _held("golden/55-affinity-default-timeout")

    assert _problems(result) == []
    assert all(flow.seen.count("/") == 3 for flow in result.flows if "10.96.60.1" in flow.name)


def test_flows_that_affinity_would_spoil_are_skipped(tmp_path: Path) -> None:
    """One source that stays with one endpoint, in a memory that is no list of `recent`, says nothing about shares."""
    case = _TESTS / "golden/16-several-slices-one-empty"
    for file in ("case.yaml", "config.yaml", "flows.yaml", "objects.yaml"):
        text = (case / file).read_text(encoding="utf-8")
        (tmp_path / file).write_text(text.replace("sessionAffinity: None", "sessionAffinity: ClientIP"))

    result = conform_case(tmp_path, Trial(program="true"))

    assert result.errors == ()
    assert ["affinity" in flow.skipped for flow in result.flows] == [True]
