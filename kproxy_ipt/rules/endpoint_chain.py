"""
KUBE-SEP: the chain of one endpoint behind one service port.

Source: kube-proxy v1.36, iptables mode.
"""

from kproxy_ipt.rules.balance import affinity_match
from kproxy_ipt.rules.fixed import MARK_MASQ
from kproxy_ipt.ruleset.matches import Match, PortMatch
from kproxy_ipt.ruleset.model import Chain, Rule
from kproxy_ipt.ruleset.targets import Dnat
from kproxy_ipt.state.model import Endpoint, ServicePort


def endpoint_chain(name: str, service_port: ServicePort, endpoint: Endpoint, comment: tuple[Match, ...]) -> Chain:
    """
    The chain that sends a connection to *endpoint*.

    A connection that comes from the endpoint itself (hairpin) is masqueraded, or the answer would not pass the node.

    Args:
        name: From `endpoint_chain_name`.
        service_port: The service port it serves.
        endpoint: Where to.
        comment: The match with the service port's text, or nothing in a large cluster.
    """
    family, protocol = service_port.family, service_port.protocol
    remember: tuple[Match, ...] = (affinity_match(name, "set", family),) if service_port.affinity_timeout_s else ()
    return Chain(
        name,
        (
            Rule(source=f"{endpoint.address}/{family.bits}", matches=comment, target=MARK_MASQ),
            Rule(
                protocol=protocol,
                matches=(*comment, *remember, PortMatch(protocol)),
                target=Dnat(endpoint.text),
            ),
        ),
    )
