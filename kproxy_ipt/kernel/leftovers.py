"""
What kube-proxy's other modes leave in the kernel beside rules of iptables: tables of nf_tables, sets, an interface.

Small questions and orders by netlink, in the network namespace of the calling thread, so no program (`nft`, `ipset`,
`ipvsadm`) is needed. Looking changes nothing. A kernel that lacks a part has nothing of it.
"""

import errno
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, MissingPrivilegeError
from kproxy_ipt.kernel.nfnetlink import (
    NETFILTER,
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    NLM_F_DUMP,
    ROUTE,
    Request,
    attribute,
    exchange,
    exchange_batch,
    nfnetlink_body,
    number_attribute,
    read_attributes,
    text_attribute,
)

_NF_TABLES, _IP_SET = 10, 6
_GET_TABLE, _DELETE_TABLE = _NF_TABLES << 8 | 1, _NF_TABLES << 8 | 2
_TABLE_NAME = 1
_DESTROY_SET, _LIST_SETS = _IP_SET << 8 | 3, _IP_SET << 8 | 7
_SET_PROTOCOL, _SET_NAME, _SET_FLAGS = 1, 2, 6
_NAMES_ONLY = 2
_SET_PROTOCOL_VERSION = b"\x06"
_DELETE_LINK, _GET_LINK = 17, 18
_LINK_NAME, _LINK_DETAILS, _LINK_KIND = 3, 18, 1
_NFGENMSG_SIZE = 4
_LINK_MESSAGE = struct.Struct("=BxHiII")
_VIRTUAL_SERVICES = Path("/proc/thread-self/net/ip_vs")
_PROTOCOLS = {Family.IPV4: NFPROTO_IPV4, Family.IPV6: NFPROTO_IPV6}
_ABSENT = frozenset({errno.ENOENT, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT})


def has_nf_table(family: Family, name: str) -> bool:
    """
    Whether nf_tables has a table of that family (`ip` or `ip6`; never `inet`) and name.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN is needed.
    """
    question = Request(_GET_TABLE, 0, nfnetlink_body(_PROTOCOLS[family], text_attribute(_TABLE_NAME, name)))
    with _refusals("nf_tables"):
        exchange(NETFILTER, question)
        return True
    return False


def delete_nf_table(family: Family, name: str) -> None:
    """
    Delete a table with all that it holds; none is fine.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN is needed.
        KernelError: The kernel refuses: another process owns the table.
    """
    order = Request(_DELETE_TABLE, 0, nfnetlink_body(_PROTOCOLS[family], text_attribute(_TABLE_NAME, name)))
    with _refusals(f"the nf_tables table {name}"):
        for code in exchange_batch(_NF_TABLES, [order]):
            if code:
                raise OSError(code, "")


def set_names() -> tuple[str, ...]:
    """
    Names of all sets of the kind that `ipset` makes.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN is needed.
    """
    version, flags = attribute(_SET_PROTOCOL, _SET_PROTOCOL_VERSION), number_attribute(_SET_FLAGS, _NAMES_ONLY)
    with _refusals("sets"):
        bodies = exchange(NETFILTER, Request(_LIST_SETS, NLM_F_DUMP, nfnetlink_body(NFPROTO_IPV4, version, flags)))
        found = (read_attributes(body, _NFGENMSG_SIZE).get(_SET_NAME, b"") for body in bodies)
        return tuple(name.rstrip(b"\0").decode("utf-8", "replace") for name in found if name)
    return ()


def destroy_set(name: str) -> None:
    """
    Destroy a set; none is fine.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN is needed.
        KernelError: A rule or another set still uses it.
    """
    version = attribute(_SET_PROTOCOL, _SET_PROTOCOL_VERSION)
    body = nfnetlink_body(NFPROTO_IPV4, version, text_attribute(_SET_NAME, name))
    with _refusals(f"the set {name}"):
        exchange(NETFILTER, Request(_DESTROY_SET, 0, body))


def link_kind(name: str) -> str | None:
    """The kind of an interface (`dummy`, `veth`), "" for a device without one, None if there is no such interface."""
    question = Request(_GET_LINK, 0, _LINK_MESSAGE.pack(0, 0, 0, 0, 0) + text_attribute(_LINK_NAME, name))
    with _refusals(f"the interface {name}"):
        details = read_attributes(exchange(ROUTE, question)[0], _LINK_MESSAGE.size).get(_LINK_DETAILS, b"")
        return read_attributes(details, 0).get(_LINK_KIND, b"").rstrip(b"\0").decode("utf-8", "replace")
    return None


def remove_link(name: str) -> None:
    """
    Remove an interface with its addresses; none is fine.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN is needed.
        KernelError: The kernel refuses.
    """
    order = Request(_DELETE_LINK, 0, _LINK_MESSAGE.pack(0, 0, 0, 0, 0) + text_attribute(_LINK_NAME, name))
    with _refusals(f"the interface {name}"):
        exchange(ROUTE, order)


def virtual_service_count() -> int:
    """How many virtual services IPVS has, in the listing that the kernel gives to readers; 0 without IPVS."""
    try:
        lines = _VIRTUAL_SERVICES.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return sum(line.startswith(("TCP ", "UDP ", "SCTP", "FWM ")) for line in lines)


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Turn what the kernel says no with into our errors; that a thing is absent is none."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise MissingPrivilegeError(f"{what}: not permitted, CAP_NET_ADMIN is needed") from error
        if error.errno not in _ABSENT:
            words = errno.errorcode.get(error.errno or 0, "no answer")
            raise KernelError(f"{what} cannot be read or removed: {words}") from error
