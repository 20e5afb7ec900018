"""Rule by rule: the counters of the kernel after one packet are the steps of its walk."""

import itertools
from collections.abc import Iterator

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.testing.lab import Lab, Place
from kproxy_ipt.trace.packet import Host, Origin, Outcome, Packet
from kproxy_ipt.trace.walk import walk

pytestmark = pytest.mark.kernel

_PORT = 9999
_CLIENT_PORT = 40001
_VIRTUAL = {Family.IPV4: "192.0.2.222", Family.IPV6: "2001:db8::c022"}
_RULES = """*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A PREROUTING -p udp -m conntrack --ctstate NEW
-A PREROUTING -p udp -m conntrack --ctstate INVALID
-A OUTPUT -p udp -j MARK --set-xmark 0xff/0xff
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:marks - [0:0]
:more - [0:0]
-A PREROUTING -p udp -j marks
-A PREROUTING -p udp -m mark --mark 0x21/0xff -m connmark --mark 0x20 -j ACCEPT
-A PREROUTING -p udp -j MARK --set-xmark 0x1/0x1
-A FORWARD -p udp -m mark ! --mark 0x21/0xff
-A POSTROUTING -p udp -m conntrack --ctstate DNAT -j CONNMARK --restore-mark
-A POSTROUTING -p udp -m mark --mark 0x20
-A OUTPUT -p udp -m mark --mark 0xff -m owner --uid-owner 12345
-A OUTPUT -p udp -m mark --mark 0xff
-A INPUT -p udp -m addrtype --dst-type LOCAL
-A marks -p udp -j MARK --set-xmark 0x20/0xff
-A marks -p udp -j CONNMARK --save-mark
-A marks -p udp -m multiport --dports 53,9990:9999 -g more
-A marks -p udp -j DROP
-A more -p udp -j MARK --set-xmark 0x1/0x0
-A more -p udp -m multiport ! --sports 40001 -j RETURN
-A more -p udp -j RETURN
-A more -p udp -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:virtual - [0:0]
-A PREROUTING -p udp -j virtual
-A PREROUTING -p udp -m addrtype ! --dst-type LOCAL -j ACCEPT
-A PREROUTING -p udp
-A INPUT -p udp
-A OUTPUT -p udp -j virtual
-A OUTPUT -p udp
-A POSTROUTING -p udp -m mark --mark 0x20 -j MASQUERADE
-A POSTROUTING -p udp
-A virtual -d {virtual} -p udp -j DNAT --to-destination {to}:8888
-A virtual -p udp
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -p udp -m udp --dport 9999 --sport 1024:65535
-A FORWARD -p udp -m conntrack --ctstate DNAT -m udp --dport 8888
-A FORWARD -p udp -m iprange --dst-range {to}-{to}
-A FORWARD -p udp -m iprange ! --dst-range {to}-{to}
-A FORWARD -i node+ -p udp -m conntrack --ctstate NEW
-A FORWARD -p udp -m physdev --physdev-is-bridged
-A OUTPUT -p udp -m state --state NEW
-A OUTPUT -p udp -m state --state ESTABLISHED
COMMIT
"""


@pytest.fixture(scope="module")
def quiet(backend: str) -> Iterator[Lab]:
    """A lab whose pods and node swallow what comes, so that no answer is counted."""
    with Lab(("podA", "podB")) as made:
        for pod, word in itertools.product(made.pods, ("iptables", "ip6tables")):
            pod.run(f"{word}-{backend}", "-I", "INPUT", "-p", "udp", "-j", "DROP")
        yield made


def _packet(place: Place, family: Family, address: str) -> Packet:
    own = place.name == "node"
    return Packet(
        family=family,
        source=place.address(family),
        destination=address,
        protocol="udp",
        source_port=_CLIENT_PORT,
        destination_port=_PORT,
        in_interface="" if own else "eth0",
        out_interface="veth0",
        origin=Origin.NODE if own else Origin.REMOTE,
    )


def _steps(outcome: Outcome) -> set[tuple[str, str, int]]:
    return {(step.table, step.chain, step.position) for step in outcome.path if step.position}


def _counted(text: str, family: Family) -> set[tuple[str, str, int]]:
    """Rules that have counted a packet."""
    return {
        (table.name, chain.name, position)
        for table in parse_save(text, family).tables.values()
        for chain in table.chains.values()
        for position, rule in enumerate(chain.rules, start=1)
        if rule.counters and rule.counters.packets
    }


@pytest.mark.parametrize("to", ["pod", "virtual", "node"])
@pytest.mark.parametrize("start", ["client", "node"])
def test_the_rules_that_count_are_those_of_the_path(
    quiet: Lab, backend: str, family: Family, start: str, to: str
) -> None:
    """Marks, connection marks, goto, ranges, states, both NATs and routing after them, in all five hooks."""
    program = f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-{backend}"
    place = quiet.node if start == "node" else quiet.client
    pod = quiet.pod("podA").address(family)
    address = {"pod": pod, "virtual": _VIRTUAL[family], "node": quiet.node.address(family)}[to]
    target = f"[{pod}]" if family is Family.IPV6 else pod
    text = _RULES.replace("{to}:", f"{target}:").replace("{to}", pod).replace("{virtual}", _VIRTUAL[family])
    quiet.node.run("conntrack", "-F")
    quiet.node.run(f"{program}-restore", stdin=text)
    with inside(quiet.node.netns):
        host = Host(addresses=frozenset(interface_addresses()))
    (outcome,) = walk(parse_save(text, family), _packet(place, family, address), host)

    place.send(address, _PORT, protocol="udp", source_port=_CLIENT_PORT, timeout_s=0.2)
    counted = _counted(quiet.node.run(f"{program}-save", "-c"), family)

    assert _steps(outcome) == counted
