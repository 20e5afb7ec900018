"""What a trace says about trouble that people really have: the rule that decides, and the mark on the way."""

from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.trace.naming import reason_of
from kproxy_ipt.trace.packet import End, Host, Origin, Outcome, Packet
from kproxy_ipt.trace.walk import walk

_SAVES = Path(__file__).parents[1] / "ruleset" / "saves"
_CONFIG = Config(cluster_cidrs=("10.244.0.0/16",))
_NODE = "192.0.2.10"
_HOST = Host(addresses=frozenset({_NODE}))
_REMOTE = slice_endpoint("10.244.2.21", node_name="node2")


def _rules(*api_objects: Service | EndpointSlice, config: Config = _CONFIG) -> Ruleset:
    return with_base_chains(desired_for(*api_objects, config=config))


def _with(ruleset: Ruleset, *changes: tuple[str, str]) -> Ruleset:
    """*ruleset* with changes of its save text."""
    text = render_save(ruleset)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_save(text, ruleset.family)


def _walk(
    ruleset: Ruleset,
    destination: str = "10.96.0.10",
    port: int = 80,
    *,
    source: str = "10.244.1.11",
    interface: str = "eth0",
    protocol: str = "tcp",
    mark: int = 0,
) -> tuple[Outcome, ...]:
    origin = Origin.NODE if source == _NODE else Origin.REMOTE
    packet = Packet(
        family=Family.IPV4,
        source=source,
        destination=destination,
        destination_port=port,
        source_port=40000,
        protocol=protocol,
        in_interface=interface if origin is Origin.REMOTE else "",
        out_interface="eth0",
        origin=origin,
        mark=mark,
    )
    return walk(ruleset, packet, _HOST)


def _saved(name: str) -> Ruleset:
    return parse_save((_SAVES / f"{name}.ipv4.txt").read_text(), Family.IPV4)


def _node_port(policy: str | None = None) -> Service:
    return service(service_type="NodePort", ports=[service_port(80, node_port=30080)], external_policy=policy)


def test_no_local_endpoint_is_a_drop_and_no_endpoint_a_refusal() -> None:
    """The two cases differ, and the last rule of the path says which one it is."""
    local = service(internal_policy="Local")
    (dropped,) = _walk(_rules(local, endpoint_slice(local, [_REMOTE])))
    (refused,) = _walk(_rules(local))

    assert (dropped.end, reason_of(dropped)) == (End.DROPPED, "default/web has no local endpoints")
    assert (refused.end, reason_of(refused)) == (End.REJECTED, "default/web has no endpoints")
    assert refused.reject_with == "icmp-port-unreachable"


def test_policy_local_lets_pods_and_the_node_reach_remote_endpoints() -> None:
    """From a pod with its own source, from the node masqueraded; the client is dropped."""
    web = _node_port("Local")
    rules = _rules(web, endpoint_slice(web, [_REMOTE]))
    (pod,) = _walk(rules, _NODE, 30080)
    (own,) = _walk(rules, _NODE, 30080, source=_NODE)
    (client,) = _walk(rules, _NODE, 30080, source="203.0.113.9")

    assert (pod.destination, pod.source, pod.masqueraded) == ("10.244.2.21", "10.244.1.11", False)
    assert (own.destination, own.masqueraded) == ("10.244.2.21", True)
    assert (client.end, reason_of(client)) == (End.DROPPED, "default/web has no local endpoints")


def test_policy_drop_of_forward_does_not_hurt_marked_traffic() -> None:
    """KUBE-FORWARD accepts it; a foreign drop in front of our jump is named as the one that decided."""
    web = _node_port()
    rules = _with(_rules(web, endpoint_slice(web, [_REMOTE])), (":FORWARD ACCEPT", ":FORWARD DROP"))
    (through,) = _walk(rules, _NODE, 30080, source="203.0.113.9")
    guarded = _with(rules, ("-A FORWARD", "-A FORWARD -i eth0 -j DROP\n-A FORWARD"))
    (shadowed,) = _walk(guarded, _NODE, 30080, source="203.0.113.9")

    assert (through.end, through.path[-1].table) == (End.ACCEPTED, "nat")
    assert [step.line for step in through.path if step.table == "filter"][-1].endswith("-j ACCEPT")
    assert shadowed.end is End.DROPPED
    assert shadowed.path[-1].line == "-A FORWARD -i eth0 -j DROP"


def test_the_foreign_rule_that_blocks_is_the_end_of_the_path() -> None:
    """A firewall whose chain is asked before ours: the whole path is there, with its DROP as the last step."""
    web = service()
    rules = _with(
        _rules(web, endpoint_slice(web, [_REMOTE])),
        (":FORWARD ACCEPT", ":FORWARD DROP\n:ufw-before-forward -"),
        ("-A FORWARD", "-A ufw-before-forward -s 10.244.0.0/16 -j DROP\n-A FORWARD -j ufw-before-forward\n-A FORWARD"),
    )
    (outcome,) = _walk(rules)

    assert outcome.end is End.DROPPED
    assert [(step.chain, step.depth) for step in outcome.path[-2:]] == [("FORWARD", 0), ("ufw-before-forward", 1)]
    assert any(step.chain.startswith("KUBE-SEP-") for step in outcome.path)


@pytest.mark.parametrize("bit", [0, 14, 31])
def test_foreign_bits_of_the_mark_survive(bit: int) -> None:
    """Only our bit is set and cleared, whichever it is."""
    web = _node_port()
    config = msgspec.structs.replace(_CONFIG, iptables=IptablesConfig(masquerade_bit=bit))
    rules = _rules(web, endpoint_slice(web, [_REMOTE]), config=config)
    foreign = 0x00FF0000 & ~(1 << bit)
    (outcome,) = _walk(rules, _NODE, 30080, source="203.0.113.9", mark=foreign)

    assert outcome.masqueraded
    assert {step.mark for step in outcome.path} == {foreign, foreign | 1 << bit}
    assert outcome.mark == foreign


def test_a_filter_that_compares_the_whole_mark_is_found() -> None:
    """The steps show the mark that our bit was added to, and the foreign rule that does not know it any more."""
    web = _node_port()
    rules = _with(
        _rules(web, endpoint_slice(web, [_REMOTE])),
        ("-A FORWARD", "-A FORWARD -m mark ! --mark 0x1bd00 -j DROP\n-A FORWARD"),
    )
    (outcome,) = _walk(rules, _NODE, 30080, source="203.0.113.9", mark=0x1BD00)

    assert outcome.end is End.DROPPED
    assert {step.mark for step in outcome.path} == {0x1BD00, 0x1FD00}
    assert "-m mark ! --mark 0x1bd00 -j DROP" in outcome.path[-1].line


def test_ufw_lets_its_ports_in_and_drops_the_rest() -> None:
    """`multiport` decides, and LOG rules behind a limit leave no assumption."""
    ufw = _saved("ufw")
    (web,), (other,) = (_walk(ufw, _NODE, port, source="203.0.113.9") for port in (443, 8080))

    assert (web.end, web.delivered_locally, web.assumptions) == (End.ACCEPTED, True, ())
    assert (other.end, other.path[-1].line) == (End.DROPPED, "policy DROP")


def test_ufw_rate_limit_is_for_clients_that_are_known() -> None:
    """A first packet to port 22 is let in; that the client is new is said."""
    (ssh,) = _walk(_saved("ufw"), _NODE, 22, source="203.0.113.9")

    assert ssh.end is End.ACCEPTED
    assert ["not known yet" in text for text in ssh.assumptions] == [True]


def test_docker_publishes_ports_by_nat_and_drops_what_is_forwarded() -> None:
    """A published port is rewritten; FORWARD has the policy DROP, and another interface is not docker's."""
    docker = _saved("docker")
    (published,) = _walk(docker, _NODE, 5432, source="203.0.113.9")
    (masqueraded,) = _walk(docker, "203.0.113.9", 443, source="172.17.0.9", interface="docker0")

    assert (published.destination, published.translated, published.end) == ("172.18.0.2", True, End.DROPPED)
    assert (masqueraded.end, masqueraded.masqueraded) == (End.ACCEPTED, True)


@pytest.mark.parametrize("name", ["calico", "docker", "firewalld", "ufw"])
@pytest.mark.parametrize("origin", ["203.0.113.9", _NODE])
@pytest.mark.parametrize("protocol", ["tcp", "udp", "icmp"])
def test_every_foreign_firewall_can_be_walked(name: str, origin: str, protocol: str) -> None:
    """Whatever hosts have: no packet is lost on the way."""
    outcomes = [
        outcome
        for destination in (_NODE, "10.96.0.10")
        for outcome in _walk(_saved(name), destination, 8080, source=origin, protocol=protocol)
    ]

    assert sum(outcome.share for outcome in outcomes) == Fraction(2)
