"""Chain names: hashes that agree with kube-proxy's, and which names are ours."""

import pytest

from kproxy_ipt.rules.names import endpoint_chain_name, is_own_chain, is_service_chain, service_suffix
from kproxy_ipt.ruleset.check import MAX_NAME_LENGTH

SERVICE_PORTS = [
    ("ns1/web:http", "tcp", "4LVCYZMTA5CQO6SX"),
    ("ns1/sticky", "tcp", "L4KWDJJLMVKGD7Z5"),
    ("default/kubernetes:https", "tcp", "NPX46M4PTMTKRN6Y"),
    ("kube-system/kube-dns:dns", "udp", "TCOU7JCQXEZGVUNU"),
    ("ns1/svc1:p80", "tcp", "XPGD46QRK7WJZT7O"),
    ("ns2/svc2:p80", "tcp", "GNZBNJ2PO5MGZ6GT"),
    ("ns3/svc3:p80", "tcp", "X27LE4BHSL4DOUIK"),
    ("ns4/svc4:p80", "tcp", "4SW47YFZTEDKD3PK"),
    ("ns5/svc5:p80", "tcp", "NUKIZ6OKUXPJNT4C"),
    ("ns2/svc2:p8080", "tcp", "2VJB64SDSIJUP5T6"),
    ("ns4/svc4:p8082", "tcp", "EBDQOQU5SJFXRIL3"),
]
ENDPOINTS = [
    ("ns1/web:http", "10.244.0.5:8080", "KUQYPTOKTZAERVSK"),
    ("ns1/lb:p80", "[fd00:244::7]:8080", "RQYYK7N27PVFYKHC"),
    ("ns1/svc1:p80", "10.180.0.1:80", "SXIVWICOYRO3J4NJ"),
    ("ns4/svc4:p80", "10.180.0.4:80", "UKSFD7AGPMPPLUHC"),
    ("ns4/svc4:p80", "10.180.0.5:80", "C6EBXVWJJZMIWKLZ"),
    ("ns5/svc5:p80", "10.180.0.3:80", "I77PXRDZVX7PMWMN"),
]


@pytest.mark.parametrize(("text", "protocol", "suffix"), SERVICE_PORTS)
def test_suffix_of_a_service_port_is_the_hash_of_its_text_and_protocol(text: str, protocol: str, suffix: str) -> None:
    """The suffix is the one in the rules of a real kube-proxy."""
    assert suffix == service_suffix(text, protocol)


@pytest.mark.parametrize(("text", "endpoint_text", "suffix"), ENDPOINTS)
def test_endpoint_chain_is_named_after_service_port_and_endpoint(text: str, endpoint_text: str, suffix: str) -> None:
    """IPv6 endpoints are hashed with their brackets."""
    assert f"KUBE-SEP-{suffix}" == endpoint_chain_name(text, "tcp", endpoint_text)


def test_endpoint_behind_two_services_has_two_chains() -> None:
    """The service port is part of the hash."""
    assert endpoint_chain_name("a/x", "tcp", "10.0.0.1:80") != endpoint_chain_name("a/y", "tcp", "10.0.0.1:80")


def test_names_fit_into_the_kernel_whatever_the_service_is_called() -> None:
    """The longest texts make names of the same length."""
    text = f"{'n' * 63}/{'s' * 63}:{'p' * 63}"

    assert len(endpoint_chain_name(text, "sctp", "[2001:db8:1111:2222:3333:4444:5555:6666]:65535")) <= MAX_NAME_LENGTH
    assert len(f"KUBE-SVC-{service_suffix(text, 'sctp')}") <= MAX_NAME_LENGTH


@pytest.mark.parametrize(
    ("table", "chain", "is_own"),
    [
        ("nat", "KUBE-SVC-4LVCYZMTA5CQO6SX", True),
        ("nat", "KUBE-SVL-4LVCYZMTA5CQO6SX", True),
        ("nat", "KUBE-EXT-4LVCYZMTA5CQO6SX", True),
        ("nat", "KUBE-FW-4LVCYZMTA5CQO6SX", True),
        ("nat", "KUBE-SEP-4LVCYZMTA5CQO6SX", True),
        ("nat", "KUBE-SVC-MYOWN", False),
        ("nat", "KUBE-SVC-4LVCYZMTA5CQO6SXX", False),
        ("nat", "KUBE-SVC-4lvcyzmta5cqo6sx", False),
        ("nat", "KUBE-SVC-4LVCYZMTA5CQO6S1", False),
        ("nat", "KUBE-XLB-4LVCYZMTA5CQO6SX", False),
        ("nat", "KUBE-CUSTOM-x", False),
    ],
)
def test_only_exact_names_of_service_chains_are_ours(table: str, chain: str, *, is_own: bool) -> None:
    """A chain that merely looks alike belongs to somebody else."""
    assert is_own is is_service_chain(table, chain)
    assert is_own is is_own_chain(table, chain)


@pytest.mark.parametrize(
    ("table", "chain", "is_own"),
    [
        ("nat", "KUBE-MARK-MASQ", True),
        ("nat", "KUBE-SERVICES", True),
        ("filter", "KUBE-PROXY-FIREWALL", True),
        ("filter", "KUBE-FIREWALL", False),
        ("filter", "KUBE-SVC-4LVCYZMTA5CQO6SX", True),
        ("filter", "KUBE-SVC-MYOWN", False),
        ("filter", "KUBE-SEP-4LVCYZMTA5CQO6SX", False),
        ("mangle", "KUBE-SVC-4LVCYZMTA5CQO6SX", False),
        ("nat", "KUBE-MARK-DROP", False),
        ("nat", "KUBE-FORWARD", False),
        ("mangle", "KUBE-KUBELET-CANARY", False),
        ("mangle", "KUBE-SERVICES", False),
        ("nat", "PREROUTING", False),
        ("raw", "KUBE-SERVICES", False),
    ],
)
def test_chains_of_dispatch_are_ours_in_their_tables_only(table: str, chain: str, *, is_own: bool) -> None:
    """What the kubelet owns or shares is not ours alone."""
    assert is_own is is_own_chain(table, chain)
