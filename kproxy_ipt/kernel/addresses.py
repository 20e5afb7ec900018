"""The addresses of the interfaces of the current network namespace, asked for over netlink."""

import ipaddress
import struct

from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.nfnetlink import NLM_F_DUMP, ROUTE, Request, exchange, read_attributes

_RTM_GETADDR = 22
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFADDRMSG = struct.Struct("=BBBBI")


def interface_addresses() -> tuple[str, ...]:
    """
    All addresses of all interfaces, both families, loopback included.

    Returns:
        Canonical texts without duplicates, in the order of the kernel: IPv4 first, then by interface. On a
        point-to-point link it is the near end.

    Raises:
        KernelError: The kernel does not answer.
    """
    try:
        answers = exchange(ROUTE, Request(_RTM_GETADDR, NLM_F_DUMP, _IFADDRMSG.pack(0, 0, 0, 0, 0)))
    except OSError as error:
        raise KernelError(f"the addresses of the interfaces cannot be read: {error.strerror or error}") from error
    found: dict[str, None] = {}
    for body in answers:
        attributes = read_attributes(body, _IFADDRMSG.size)
        packed = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS, b""))
        if len(packed) in (4, 16):
            found[ipaddress.ip_address(packed).compressed] = None
    return tuple(found)
