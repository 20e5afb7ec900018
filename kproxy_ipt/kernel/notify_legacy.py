"""
Telling cheaply whether legacy tables changed: their sizes, asked for without reading a rule.

Legacy tables notify nobody. The size of a table and where its built-in chains begin and end takes the kernel some
microseconds to tell, so it can be asked every second, whereas reading the rules copies all of them.

A change that keeps every size (a rule replaced by another of the same length, two rules exchanged) has the same shape.
`legacy_digest` shows it too, but the kernel copies the whole table for that: 2 ms for 1,000 rules, some 70 ms for the
40,000 of the largest table that is read. A flush, an inserted rule, a removed jump, a table that is gone are
seen by shape.

Source: `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`, `struct ipt_getinfo`, `struct ipt_entry` of
`linux/netfilter_ipv4/ip_tables.h`, and their IPv6 twins.
"""

import ctypes
import errno
import hashlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, MissingPrivilegeError
from kproxy_ipt.kernel.xtables_proc import legacy_tables

ENTRIES_OF_CHAIN = 2
"""Of a chain of users, beside its rules: its name, and the return at its end."""

_GET_INFO = 64
_GET_ENTRIES = 65
_LEVEL = {Family.IPV4: socket.IPPROTO_IP, Family.IPV6: socket.IPPROTO_IPV6}
_ADDRESS_FAMILY = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_INFO = struct.Struct("=32sI5I5III")
_ENTRIES = struct.Struct("=32sI4x")
_NEXT_OFFSET = struct.Struct("=H")
_NEXT_OFFSET_AT = {Family.IPV4: 90, Family.IPV6: 142}
_COUNTERS = {Family.IPV4: slice(96, 112), Family.IPV6: slice(152, 168)}
_NO_COUNTERS = bytes(16)
_MOST_OCTETS = 16 << 20


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
    with _asking(family) as asked:
        return tuple(_shapes(asked, family, _present(family, tables)))


def legacy_digest(family: Family, tables: Sequence[str] = ("nat", "filter")) -> bytes:
    """
    A digest of all rules of legacy tables, counters left out: another one for any rule that is changed or moved.

    Reads in the network namespace of the calling thread; takes memory of the size of a table meanwhile, so rules of
    tables of more than 16 MiB are left out.

    Returns:
        16 bytes, the same for the same rules in the same order; tables that do not exist are not made.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN is needed.
        KernelError: The kernel does not answer, or a table changed in the middle.
    """
    digest = hashlib.blake2b(digest_size=16)
    with _asking(family) as asked:
        for shape in _shapes(asked, family, _present(family, tables)):
            digest.update(shape.name.encode())
            if shape.octets <= _MOST_OCTETS:
                digest.update(_rules(asked, family, shape))
    return digest.digest()


def read_entries(family: Family, table: str) -> bytes:
    """
    The rules of a legacy table as the kernel keeps them, with their counters; b"" if there is no such table.

    Reads in the network namespace of the calling thread.

    Raises:
        As `legacy_digest`.
    """
    with _asking(family) as asked:
        shapes = list(_shapes(asked, family, _present(family, (table,))))
        return bytes(_entries(asked, family, shapes[0])) if shapes else b""


def _present(family: Family, tables: Sequence[str]) -> list[str]:
    present = frozenset(legacy_tables(family))
    return [table for table in tables if table in present]


@contextmanager
def _asking(family: Family) -> Iterator[socket.socket]:
    """A socket to ask with; what goes wrong with it is an error of ours."""
    try:
        with socket.socket(_ADDRESS_FAMILY[family], socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as asked:
            yield asked
    except PermissionError as error:
        raise MissingPrivilegeError(
            "legacy tables may not be looked at: CAP_NET_ADMIN and CAP_NET_RAW are needed"
        ) from error
    except OSError as error:
        raise KernelError(f"legacy tables cannot be looked at: {error.strerror or error}") from error


def _rules(asked: socket.socket, family: Family, shape: LegacyTable) -> memoryview:
    """The entries of a table, with zeros for counters."""
    entries = _entries(asked, family, shape)
    next_offset_at, counters, start = _NEXT_OFFSET_AT[family], _COUNTERS[family], 0
    while start < shape.octets:
        entries[start + counters.start : start + counters.stop] = _NO_COUNTERS
        (length,) = _NEXT_OFFSET.unpack_from(entries, start + next_offset_at)
        start += max(length, counters.stop)
    return entries


def _entries(asked: socket.socket, family: Family, shape: LegacyTable) -> memoryview:
    """The entries of a table as the kernel keeps them."""
    octets = ctypes.create_string_buffer(_ENTRIES.size + shape.octets)
    _ENTRIES.pack_into(octets, 0, shape.name.encode(), shape.octets)
    _get(asked, _LEVEL[family], _GET_ENTRIES, octets)
    return memoryview(octets).cast("B")[_ENTRIES.size :]


def _shapes(asked: socket.socket, family: Family, tables: Sequence[str]) -> Iterator[LegacyTable]:
    for table in tables:
        shape = _shape(asked, _LEVEL[family], table)
        if shape is not None:
            yield shape


def _shape(asked: socket.socket, level: int, table: str) -> LegacyTable | None:
    """None for a table that has vanished since it was listed."""
    octets = ctypes.create_string_buffer(_INFO.pack(table.encode(), *(0,) * 13), _INFO.size)
    try:
        _get(asked, level, _GET_INFO, octets)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOPROTOOPT):
            return None
        raise
    _, _, *numbers = _INFO.unpack(octets.raw)
    *offsets, entries, size = numbers
    return LegacyTable(table, entries, size, tuple(offsets))


def _get(asked: socket.socket, level: int, option: int, octets: "ctypes.Array[ctypes.c_char]") -> None:
    """Not `socket.getsockopt`: the kernel reads the name of the table from the buffer that it fills."""
    length = ctypes.c_uint32(len(octets))
    if _libc().getsockopt(asked.fileno(), level, option, octets, ctypes.byref(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
