"""
A ruleset of nftables in the shape of kube-proxy's nftables mode, written by hand: a line of reference, nothing more.

One lookup in a map finds the chain of the Service, one random number the endpoint. Left out is what a packet to a
cluster IP does not meet: node ports, firewalls, Services without endpoints.

Source: `pkg/proxy/nftables/proxier.go` of Kubernetes, names shortened.
"""

from collections.abc import Iterator

from kproxy_ipt.testing.big_cluster import ENDPOINTS, Protocol, endpoint_addresses, service_address

_SERVICES_PER_INPUT = 500

_FIXED = """
chain mark-for-masquerade { mark set mark or 0x4000; }
chain masquerading {
  mark and 0x4000 == 0 return
  mark set mark xor 0x4000
  masquerade fully-random
}
chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
chain no-endpoints { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
chain filter-output { type filter hook output priority -110; ct state new jump no-endpoints; }
chain filter-forward { type filter hook forward priority -110; ct state new jump no-endpoints; }
chain nat-output { type nat hook output priority -100; jump services; }
chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
"""


def reference_inputs(services: int, cluster_cidr: str, protocol: Protocol, endpoints: int = ENDPOINTS) -> Iterator[str]:
    """
    The inputs of `nft -f`, in order, for the cluster that `cluster` of the same arguments makes.

    One input for all takes minutes with 20,000 Services, as a large input of iptables-nft does.
    """
    yield f"table ip kube-proxy {{{_FIXED}}}\n"
    for start in range(0, services, _SERVICES_PER_INPUT):
        numbers = range(start, min(start + _SERVICES_PER_INPUT, services))
        chains = "\n".join(line for number in numbers for line in _chains(number, cluster_cidr, protocol, endpoints))
        elements = ", ".join(
            f"{service_address(number)} . {protocol.lower()} . 80 : goto service-{number}" for number in numbers
        )
        yield f"table ip kube-proxy {{\n{chains}\n}}\nadd element ip kube-proxy service-ips {{ {elements} }}\n"


def _chains(number: int, cluster_cidr: str, protocol: Protocol, endpoints: int) -> Iterator[str]:
    word = protocol.lower()
    for index, address in enumerate(endpoint_addresses(number, endpoints)):
        yield f"chain endpoint-{number}-{index} {{"
        yield f"  ip saddr {address} jump mark-for-masquerade"
        yield f"  meta l4proto {word} dnat to {address}:8080\n}}"
    targets = ", ".join(f"{index} : goto endpoint-{number}-{index}" for index in range(endpoints))
    match = f"ip daddr {service_address(number)} {word} dport 80 ip saddr != {cluster_cidr}"
    yield f"chain service-{number} {{\n  {match} jump mark-for-masquerade"
    yield f"  numgen random mod {endpoints} vmap {{ {targets} }}\n}}"
