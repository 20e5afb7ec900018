"""
Chain names: what a name says about the service port behind it, and which names are ours.

The suffix of a service chain is a hash, so names have a fixed length whatever the names of the objects are, and the
same on every node. The names are those of kube-proxy, so that either finds and removes the other's chains.

Source: kube-proxy v1.36, iptables mode; the kernel allows 28 characters (XT_EXTENSION_MAXNAMELEN).
"""

import re
from hashlib import sha256

TABLES = ("filter", "nat")
"""The tables that we have rules in."""

KUBE_SERVICES = "KUBE-SERVICES"
KUBE_NODEPORTS = "KUBE-NODEPORTS"
KUBE_POSTROUTING = "KUBE-POSTROUTING"
KUBE_MARK_MASQ = "KUBE-MARK-MASQ"
KUBE_EXTERNAL_SERVICES = "KUBE-EXTERNAL-SERVICES"
KUBE_FORWARD = "KUBE-FORWARD"
KUBE_PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"
KUBE_FIREWALL = "KUBE-FIREWALL"
KUBE_PROXY_CANARY = "KUBE-PROXY-CANARY"

FIXED_CHAINS = {
    "filter": (KUBE_SERVICES, KUBE_NODEPORTS, KUBE_EXTERNAL_SERVICES, KUBE_FORWARD, KUBE_PROXY_FIREWALL),
    "nat": (KUBE_SERVICES, KUBE_NODEPORTS, KUBE_POSTROUTING, KUBE_MARK_MASQ),
    "mangle": (),
}
"""Chains that know no service, by table, without KUBE-FIREWALL, which the kubelet owns as well."""

MAY_BE_EMPTY = frozenset(
    {KUBE_SERVICES, KUBE_NODEPORTS, KUBE_EXTERNAL_SERVICES, KUBE_PROXY_FIREWALL, KUBE_FIREWALL, KUBE_PROXY_CANARY}
)
"""Chains that mean "nothing of this kind" when they hold no rule."""

_DISPATCH_CHAIN = re.compile(r"KUBE-SVC-[A-Z2-7]{16}")
_SERVICE_CHAIN = re.compile(r"KUBE-(?:SVC|SVL|EXT|FW|SEP)-[A-Z2-7]{16}")


_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = tuple(first + second for first in _BASE32 for second in _BASE32)
"""Two characters for each number of 10 bits."""


def _suffix(text: str) -> str:
    """
    16 characters of base32 are 10 bytes of the digest.

    Written out, since there is a name for each endpoint: `base64.b32encode` takes three times as long.
    """
    bits = int.from_bytes(sha256(text.encode()).digest()[:10], "big")
    first, second = bits >> 40, bits & 0xFF_FFFF_FFFF
    return (
        f"{_PAIRS[first >> 30]}{_PAIRS[first >> 20 & 1023]}{_PAIRS[first >> 10 & 1023]}{_PAIRS[first & 1023]}"
        f"{_PAIRS[second >> 30]}{_PAIRS[second >> 20 & 1023]}{_PAIRS[second >> 10 & 1023]}{_PAIRS[second & 1023]}"
    )


def service_suffix(service_port_text: str, protocol: str) -> str:
    """The suffix that the SVC, SVL, EXT and FW chains of one service port share."""
    return _suffix(service_port_text + protocol)


def endpoint_chain_name(service_port_text: str, protocol: str, endpoint_text: str) -> str:
    """The `KUBE-SEP-` chain of one endpoint behind one service port; a pod behind two services has two."""
    return "KUBE-SEP-" + _suffix(service_port_text + protocol + endpoint_text)


def dispatch_chain_name(table: str, chain: str, path: str) -> str:
    """
    The `KUBE-SVC-` chain for a part of the rules of a shared chain.

    kube-proxy removes chains of this prefix from the table nat, so the way back to it leaves nothing there.
    """
    return "KUBE-SVC-" + _suffix(f"{table} {chain} {path}")


def is_service_chain(table: str, chain: str) -> bool:
    """
    Whether a chain belongs to a service port.

    Only exact names count: a chain `KUBE-SVC-MYOWN` is somebody else's, though kube-proxy would remove it.
    """
    return table == "nat" and _SERVICE_CHAIN.fullmatch(chain) is not None


def is_changing_chain(table: str, chain: str) -> bool:
    """Whether a chain comes and goes with service ports: one of theirs, or a part of dispatch."""
    is_dispatch = table == "filter" and _DISPATCH_CHAIN.fullmatch(chain) is not None
    return is_dispatch or is_service_chain(table, chain)


def is_own_chain(table: str, chain: str) -> bool:
    """Whether a chain is ours alone: a fixed one, of a service port, or of dispatch; KUBE-FIREWALL is shared."""
    return chain in FIXED_CHAINS.get(table, ()) or is_changing_chain(table, chain)
