"""
Telling cheaply whether legacy tables changed: their sizes, asked for without reading a rule.

Legacy tables notify nobody. The size of a table and where its built-in chains begin and end takes the kernel some
microseconds to tell, so it can be asked every second, whereas reading the rules copies all of them.

A change that keeps every size (one rule replaced by another of the same length) is not seen: periodic verification
finds those. A flush, an inserted rule, a removed jump, a table that is gone are seen at once.

Source: `IPT_SO_GET_INFO`, `struct ipt_getinfo` of `linux/netfilter_ipv4/ip_tables.h`, and their IPv6 twins.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, MissingPrivilegeError
from kproxy_ipt.kernel.xtables_proc import legacy_tables

_GET_INFO = 64
_LEVEL = {Family.IPV4: socket.IPPROTO_IP, Family.IPV6: socket.IPPROTO_IPV6}
_ADDRESS_FAMILY = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_INFO = struct.Struct("=32sI5I5III")


class LegacyTable(msgspec.Struct, frozen=True):
    """
    The shape of one table.

    Attributes:
        name: `nat`, `filter`, ...
        entries: Number of rules, with one more for each policy and two for each chain of users.
        octets: Size of all of them.
        offsets: Where each built-in chain begins, then where the policy of each stands.
    """

    name: str
    entries: int
    octets: int
    offsets: tuple[int, ...]


LegacyFingerprint = tuple[LegacyTable, ...]


def legacy_fingerprint(family: Family, tables: Sequence[str] = ("nat", "filter")) -> LegacyFingerprint:
    """
    The shapes of the legacy tables of the calling thread's network namespace; compare with `==`.

    Returns:
        In the order of *tables*, those that exist: none is made by asking.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN and CAP_NET_RAW are needed.
        KernelError: The kernel does not answer.
    """
    present = frozenset(legacy_tables(family))
    wanted = [table for table in tables if table in present]
    if not wanted:
        return ()
    try:
        with socket.socket(_ADDRESS_FAMILY[family], socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as asked:
            return tuple(_shapes(asked, family, wanted))
    except PermissionError as error:
        raise MissingPrivilegeError(
            "legacy tables may not be looked at: CAP_NET_ADMIN and CAP_NET_RAW are needed"
        ) from error
    except OSError as error:
        raise KernelError(f"legacy tables cannot be looked at: {error.strerror or error}") from error


def _shapes(asked: socket.socket, family: Family, tables: Sequence[str]) -> Iterator[LegacyTable]:
    for table in tables:
        shape = _shape(asked, _LEVEL[family], table)
        if shape is not None:
            yield shape


def _shape(asked: socket.socket, level: int, table: str) -> LegacyTable | None:
    """None for a table that has vanished since it was listed."""
    octets = ctypes.create_string_buffer(_INFO.pack(table.encode(), *(0,) * 13), _INFO.size)
    length = ctypes.c_uint32(_INFO.size)
    # Not `socket.getsockopt`: the kernel reads the name of the table from the buffer that it fills.
    if _libc().getsockopt(asked.fileno(), level, _GET_INFO, octets, ctypes.byref(length)) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOENT, errno.ENOPROTOOPT):
            return None
        raise OSError(number, os.strerror(number))
    _, _, *numbers = _INFO.unpack(octets.raw)
    *offsets, entries, size = numbers
    return LegacyTable(table, entries, size, tuple(offsets))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
