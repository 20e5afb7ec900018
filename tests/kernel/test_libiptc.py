"""The libiptc reader, held against iptables-legacy-save."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.libiptc import read_ruleset, save_text
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.nfacct import CT_STATE_INVALID_DROPPED, LOCALHOST_NODE_PORTS_ACCEPTED, ensure_counters
from kproxy_ipt.kernel.xtables_proc import legacy_tables
from kproxy_ipt.ruleset.model import Counters
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.testing.namespaces import temporary_namespace

pytestmark = pytest.mark.kernel

_GOLDEN = Path(__file__).parents[1] / "golden"
_CASES = (
    "05-cluster-ip-ten-endpoints",
    "08-protocol-sctp",
    "25-service-proxy-name-label",
    "40-source-ranges-with-node",
    "55-affinity-default-timeout",
    "67-dual-stack",
    "74-local-bridge-interface",
)
_PREFIX = {Family.IPV4: "ip", Family.IPV6: "ip6"}
_FOREIGN = """*nat
:A - [0:0]
:B - [0:0]
-A A ! -s 10.0.0.0/8 -d 1.2.3.0/255.0.255.0 -i eth+ -p tcp -m tcp --dport 80:90 -m comment --comment "a \\"q\\" b" -j B
-A A -p udp -m udp ! --sport 5 -g B
-A A ! -o lo -f -j RETURN
-A A ! -f -j RETURN
-A A -p 77 -j RETURN
-A A ! -p icmp -m state --state NEW
-A A -p icmp -m icmp --icmp-type 8 -m statistic --mode nth --every 3 --packet 1 -j RETURN
-A A -m mark ! --mark 0x4000/0x4000 -m conntrack --ctstate RELATED,ESTABLISHED -j MARK --set-xmark 0x4000/0x4000
-A A -p tcp -m multiport --dports 1,2,3:7 -j DNAT --to-destination 1.2.3.4:80-90 --random --persistent
-A A -p tcp -j SNAT --to-source 1.2.3.4-1.2.3.9:1024-65535 --random-fully
-A A -j DNAT --to-destination 1.2.3.4
-A A -p udp -j DNAT --to-destination :53
-A A -p udp -j DNAT --to-destination 1.2.3.4:1000-2000/7000
-A A -p tcp -j MASQUERADE --to-ports 1024-2000 --random
-A A -p tcp -j REDIRECT --to-ports 8080
-A A -m limit --limit 5/min -j LOG --log-prefix "abc def "
COMMIT
"""


@pytest.fixture(autouse=True)
def namespace() -> Iterator[str]:
    """Each test has tables of its own."""
    with temporary_namespace("iptc") as name, inside(name):
        yield name


def _restore(family: Family, text: str) -> None:
    completed = SubprocessRunner().run([f"{_PREFIX[family]}tables-legacy-restore"], stdin=text)
    assert completed.exit_status == 0, completed.stderr


def _saved(family: Family) -> str:
    text = SubprocessRunner().run([f"{_PREFIX[family]}tables-legacy-save", "--counters"]).stdout
    return "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("family", list(Family))
def test_golden_rules_are_read_alike_by_both_readers(case: str, family: Family) -> None:
    """The rules of a recorded case, loaded into the kernel, give the same text and the same Ruleset."""
    ensure_counters([CT_STATE_INVALID_DROPPED, LOCALHOST_NODE_PORTS_ACCEPTED])
    _restore(family, (_GOLDEN / case / f"{_PREFIX[family]}tables.txt").read_text())
    saved = _saved(family)

    assert save_text(family) == saved
    assert read_ruleset(family) == parse_save(saved, family)


def test_foreign_rules_are_read_to_the_letter() -> None:
    """Masks with gaps, fragments, gotos, aliases and quotes come out as `iptables-legacy-save` prints them."""
    _restore(Family.IPV4, _FOREIGN)

    assert save_text(Family.IPV4) == _saved(Family.IPV4)


def test_translations_of_ipv6_are_read_after_those_of_ipv4() -> None:
    """One process reads both families, whichever comes first."""
    targets = (
        "DNAT --to-destination [fd00::1]:80 --persistent",
        "DNAT --to-destination fd00::1-fd00::9",
        "SNAT --to-source [fd00::1]:1-5 --random",
        "MASQUERADE --random-fully",
        "REDIRECT --to-ports 5-6",
    )
    _restore(Family.IPV4, _FOREIGN)
    _restore(
        Family.IPV6, "*nat\n:A - [0:0]\n" + "".join(f"-A A -p tcp -j {target}\n" for target in targets) + "COMMIT\n"
    )

    for family in (Family.IPV4, Family.IPV6, Family.IPV4):
        assert save_text(family) == _saved(family)


def test_reading_creates_no_table() -> None:
    """In an empty namespace there is nothing, and there is still nothing after looking."""
    assert read_ruleset(Family.IPV4).tables == {}
    assert save_text(Family.IPV6, ("nat",)) == ""
    assert legacy_tables(Family.IPV4) == legacy_tables(Family.IPV6) == ()


def test_only_the_wanted_table_is_read() -> None:
    """Tables that were not asked for are left out, those that are missing are passed over."""
    _restore(Family.IPV4, "*nat\n:A - [0:0]\nCOMMIT\n*filter\n:B - [0:0]\nCOMMIT\n")

    text = save_text(Family.IPV4, ("filter", "raw"))

    assert text.startswith("*filter\n")
    assert ":B - [0:0]" in text
    assert "*nat" not in text


def test_counters_are_those_of_the_kernel() -> None:
    """Three packets through the second rule of OUTPUT are counted there."""
    _restore(Family.IPV4, "*filter\n-A OUTPUT -p tcp\n-A OUTPUT -p udp -m udp --dport 9\nCOMMIT\n")
    SubprocessRunner().run(["bash", "-c", "for i in 1 2 3; do echo -n abc > /dev/udp/127.0.0.1/9; done"])

    tcp, udp = (rule.counters for rule in read_ruleset(Family.IPV4).tables["filter"].chains["OUTPUT"].rules)

    assert (tcp, udp) == (Counters(0, 0), Counters(3, 3 * 31))


def test_standard_output_is_back_after_reading(capfd: pytest.CaptureFixture[str]) -> None:
    """What extensions print while they are read does not reach anybody, what we print afterwards does."""
    _restore(Family.IPV4, _FOREIGN)
    save_text(Family.IPV4)
    SubprocessRunner().run(["true"])
    print("afterwards")  # noqa: T201 - this is the fact

    assert capfd.readouterr().out == "afterwards\n"
