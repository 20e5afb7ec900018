"""
Addresses and node ports of Services: what a Service asks for is checked, what it leaves open is chosen.

The first free one is chosen, so that a lab made anew looks like the one before.
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address, ip_network

from kproxy_ipt.addresses import Family
from kproxy_ipt.lab.documents import ApiObject, number, objects_in, text, texts_in
from kproxy_ipt.lab.layout import BALANCER_CIDRS, NODE_PORTS, SERVICE_CIDRS

_FIRST_CLUSTER_IP = 10
_FIRST_BALANCER_IP = 10


class TakenError(ValueError):
    """A wanted address or port is taken or outside of its range, or none is left; the text is what the API says."""


class Taken:
    """What the Services of a cluster hold already; *services* without the one that asks."""

    def __init__(self, services: Iterable[ApiObject]) -> None:
        self._cluster_ips: set[str] = set()
        self._balancer_ips: set[str] = set()
        self._node_ports: set[tuple[str, int]] = set()
        for service in services:
            self._cluster_ips |= {
                str(ip_address(each)) for each in texts_in(service, "spec", "clusterIPs") if each != "None"
            }
            ingress = objects_in(service, "status", "loadBalancer", "ingress")
            self._balancer_ips |= {text(each, "ip") for each in ingress}
            ports = objects_in(service, "spec", "ports")
            self._node_ports |= {(text(each, "protocol"), number(each, "nodePort")) for each in ports}
            self._node_ports.add(("TCP", number(service, "spec", "healthCheckNodePort")))

    def cluster_ip(self, family: Family, wanted: str) -> str:
        """
        The wanted cluster IP, an address of that family, or a free one where *wanted* is "".

        Raises:
            TakenError: See there.
        """
        network = ip_network(SERVICE_CIDRS[family])
        if not wanted:
            return self._free(SERVICE_CIDRS[family], _FIRST_CLUSTER_IP, self._cluster_ips)
        chosen = ip_address(wanted)
        if chosen not in network:
            reason = f"the provided IP is not in the valid range. The range of valid IPs is {network}"
            raise TakenError(f'Invalid value: "{wanted}": failed to allocate IP {wanted}: {reason}')
        if str(chosen) in self._cluster_ips:
            raise TakenError(
                f'Invalid value: "{wanted}": failed to allocate IP {wanted}: provided IP is already allocated'
            )
        self._cluster_ips.add(str(chosen))
        return str(chosen)

    def balancer_ip(self, family: Family) -> str:
        """
        A free address of the load balancers.

        Raises:
            TakenError: None is left.
        """
        return self._free(BALANCER_CIDRS[family], _FIRST_BALANCER_IP, self._balancer_ips)

    def node_port(self, protocol: str, wanted: int) -> int:
        """
        The wanted node port, or a free one where *wanted* is 0.

        Raises:
            TakenError: See there.
        """
        if wanted and wanted not in NODE_PORTS:
            span = f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}"
            raise TakenError(
                f"Invalid value: {wanted}: provided port is not in the valid range. The range of valid ports is {span}"
            )
        if (protocol, wanted) in self._node_ports and wanted:
            raise TakenError(f"Invalid value: {wanted}: provided port is already allocated")
        free = (port for port in NODE_PORTS if not {("TCP", port), ("UDP", port), ("SCTP", port)} & self._node_ports)
        chosen = wanted or next(free, 0)
        if not chosen:
            raise TakenError("Internal error: no node port is left")
        self._node_ports.add((protocol, chosen))
        return chosen

    @staticmethod
    def _free(cidr: str, first: int, taken: set[str]) -> str:
        network = ip_network(cidr)
        candidates: Sequence[int] = range(first, min(network.num_addresses - 1, 1 << 16))
        for index in candidates:
            address = str(network[index])
            if address not in taken:
                taken.add(address)
                return address
        raise TakenError(f"Internal error: no address of {cidr} is left")
