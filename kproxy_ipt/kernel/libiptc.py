"""
Reading the legacy tables in this process, through libiptc: the only importer of `iptc` (python-iptables).

Legacy backend only, and read-only: this must never be called on a host whose backend is nft. Only tables that exist are
opened, since opening one creates it. It takes no xtables lock: the kernel hands out a table in one piece.

What is used of python-iptables 1.2.0 is its lower half: the functions of libiptc, the structures, and the `save`
functions of the extensions, which print to the C library's stdout. Its upper half is left alone, since (all tried)

- `Target` asks every table whether its name is a chain of it, and thereby creates all five tables;
- `Table` commits when it is closed or refreshed;
- `Match` and `Target` read at most 1,024 bytes of what an extension prints, and split it without regard to quotes;
- both take an extension's newest revision for granted, whatever revision the rule has;
- in a process that read one family before, they do not find DNAT, SNAT and MASQUERADE of the other (`nat_ranges.py`).

File descriptor 1 is a memory file while an extension prints, so no other thread may write to standard output meanwhile.
A namespace is entered as for everything else (`netns.inside`): libiptc opens its socket anew for each table, the import
may have happened anywhere.
"""

import ctypes
import ipaddress
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, MissingFeatureError
from kproxy_ipt.kernel.nat_ranges import nat_arguments
from kproxy_ipt.kernel.xtables_proc import legacy_tables
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save

_PROTOCOLS = {
    1: "icmp",
    6: "tcp",
    17: "udp",
    47: "gre",
    50: "esp",
    51: "ah",
    58: "ipv6-icmp",
    132: "sctp",
    135: "mobility-header",
    136: "udplite",
}
_IN_INTERFACE, _OUT_INTERFACE, _SOURCE, _DESTINATION, _FRAGMENT, _PROTOCOL = 0x01, 0x02, 0x08, 0x10, 0x20, 0x40
_FLAG_FRAGMENT = 0x01
_FLAG_GOTO = {Family.IPV4: 0x02, Family.IPV6: 0x04}


def read_ruleset(family: Family) -> Ruleset:
    """
    Read all legacy tables of the current network namespace, with the counters of chains and rules.

    Raises:
        MissingFeatureError: python-iptables or libiptc cannot be loaded.
        MissingPrivilegeError: Only root may read the tables.
        KernelError: A table cannot be read.
    """
    return parse_save(save_text(family), family)


def save_text(family: Family, tables: Sequence[str] | None = None) -> str:
    """
    What `iptables-legacy-save --counters` prints, to the letter but for its comments.

    Rules with an extension of a revision that the library does not know keep `-m NAME` or `-j NAME` alone.

    Args:
        family: Of the tables.
        tables: Names; None means all. Those that do not exist are passed over.

    Raises:
        As `read_ruleset`.
    """
    present = legacy_tables(family)
    wanted = [table for table in present if tables is None or table in tables]
    if not wanted:
        return ""
    reader = _Reader(family)
    return "".join(f"{line}\n" for table in wanted for line in reader.lines(table))


class _Reader:
    """libiptc and the extensions of one family."""

    def __init__(self, family: Family) -> None:
        # Loading iptc runs modprobe and opens libraries: only for those who read through it.
        try:
            from iptc import ip4tc, ip6tc, xtables
        except Exception as error:  # it raises bare exceptions where a library is missing
            raise MissingFeatureError(f"libiptc cannot be loaded: {error}") from error
        is_ipv4 = family is Family.IPV4
        self._family = family
        self._library = ip4tc.iptc() if is_ipv4 else ip6tc.ip6tc()
        self._entry = ip4tc.ipt_entry if is_ipv4 else ip6tc.ip6t_entry
        self._extensions = xtables.xtables(ip4tc.NFPROTO_IPV4 if is_ipv4 else ip6tc.NFPROTO_IPV6)
        self._match = xtables.xt_entry_match
        self._target = xtables.xt_entry_target
        self._counters = xtables.xt_counters
        self._printed: dict[bytes, str] = {}

    def lines(self, table: str) -> list[str]:
        """The lines of one table, from `*table` to `COMMIT`."""
        with self._opened(table) as handle, _captured_stdout() as capture:
            chains = self._chains(handle)
            heads = [self._chain_line(chain, handle) for chain in chains]
            rules = [
                self._rule_line(chain.decode(), entry, handle, capture)
                for chain in chains
                for entry in self._entries(chain, handle)
            ]
        return [f"*{table}", *heads, *rules, "COMMIT"]

    @contextmanager
    def _opened(self, table: str) -> Iterator[object]:
        handle = self._library.iptc_init(table.encode())
        if not handle:
            raise KernelError(f"the legacy table {table} cannot be read through libiptc")
        try:
            yield handle
        finally:
            self._library.iptc_free(handle)

    def _chains(self, handle: object) -> list[bytes]:
        found = []
        name = self._library.iptc_first_chain(handle)
        while name:
            found.append(bytes(name))
            name = self._library.iptc_next_chain(handle)
        return found

    def _entries(self, chain: bytes, handle: object) -> Iterator["ctypes._Pointer[ctypes.Structure]"]:
        entry = self._library.iptc_first_rule(chain, handle)
        while entry:
            yield entry
            entry = self._library.iptc_next_rule(entry, handle)

    def _chain_line(self, chain: bytes, handle: object) -> str:
        if not self._library.iptc_builtin(chain, handle):
            return f":{chain.decode()} - [0:0]"
        counters = self._counters()
        policy = self._library.iptc_get_policy(chain, ctypes.byref(counters), handle)
        return f":{chain.decode()} {policy.decode()} [{counters.pcnt}:{counters.bcnt}]"

    def _rule_line(self, chain: str, pointer: "ctypes._Pointer[ctypes.Structure]", handle: object, capture: int) -> str:
        entry = pointer.contents
        header = entry.ip if self._family is Family.IPV4 else entry.ipv6
        address = ctypes.addressof(entry)
        parts = [f"[{entry.counters.pcnt}:{entry.counters.bcnt}] -A {chain}", *self._header(header)]
        offset = ctypes.sizeof(self._entry)
        while offset < entry.target_offset:
            match = self._match.from_address(address + offset)
            parts.append(self._extension("-m", match, header, capture))
            offset += match.u.match_size
        target_name = self._library.iptc_get_target(pointer, handle)
        if target_name:
            target = self._target.from_address(address + entry.target_offset)
            option = "-g" if header.flags & _FLAG_GOTO[self._family] else "-j"
            is_extension = bool(target.u.user.name)
            parts.append(
                self._extension(option, target, header, capture) if is_extension else f"{option} {target_name.decode()}"
            )
        return " ".join(parts)

    def _header(self, header: ctypes.Structure) -> Iterator[str]:
        inverted = header.invflags
        yield from self._address("-s", header.src, header.smsk, inverted & _SOURCE)
        yield from self._address("-d", header.dst, header.dmsk, inverted & _DESTINATION)
        for option, name, bit in (("-i", header.iniface, _IN_INTERFACE), ("-o", header.outiface, _OUT_INTERFACE)):
            if name:
                yield f"{_not(inverted & bit)}{option} {name.decode()}"
        if header.proto:
            yield f"{_not(inverted & _PROTOCOL)}-p {_PROTOCOLS.get(header.proto, header.proto)}"
        if self._family is Family.IPV4 and (header.flags & _FLAG_FRAGMENT or inverted & _FRAGMENT):
            yield f"{_not(inverted & _FRAGMENT)}-f"

    def _address(self, option: str, address: ctypes.Structure, mask: ctypes.Structure, inverted: int) -> Iterator[str]:
        bits = int.from_bytes(bytes(mask), "big")
        value = int.from_bytes(bytes(address), "big")
        if not (bits or value or inverted):
            return
        width = self._family.bits
        length = bits.bit_count()
        text = _address_text(value, width)
        whole = (1 << width) - (1 << (width - length))
        yield f"{_not(inverted)}{option} {text}/{length if bits == whole else _address_text(bits, width)}"

    def _extension(self, option: str, entry: ctypes.Structure, header: ctypes.Structure, capture: int) -> str:
        """`-m NAME ...` or `-j NAME ...`; what was printed once for the same bytes is not printed again."""
        address = ctypes.addressof(entry)
        size = entry.u.match_size if option == "-m" else entry.u.target_size
        key = option.encode() + ctypes.string_at(address, size)
        if key not in self._printed:
            self._printed[key] = self._print(option, entry, header, capture)
        return self._printed[key]

    def _print(self, option: str, entry: ctypes.Structure, header: ctypes.Structure, capture: int) -> str:
        name = entry.u.user.name
        if option != "-m":
            record = ctypes.string_at(ctypes.addressof(entry), entry.u.target_size)[ctypes.sizeof(self._target) :]
            arguments = nat_arguments(self._family, name.decode(), entry.u.user.revision, record)
            if arguments is not None:
                return f"{option} {name.decode()} {arguments}".rstrip()
        found = self._extensions.find_match(name) if option == "-m" else self._extensions.find_target(name)
        module = found[0] if found else None
        pointer = ctypes.pointer(entry)
        if module is None or module.revision != entry.u.user.revision:
            return f"{option} {name.decode()}"
        alias = module.alias(pointer) if module.alias else None
        head = f"{option} {(alias or name).decode()}"
        if not module.save:
            return head
        start = os.lseek(capture, 0, os.SEEK_END)
        self._extensions.save(module, header, pointer)
        printed = os.pread(capture, os.lseek(capture, 0, os.SEEK_END) - start, start)
        return head + printed.decode("utf-8", "surrogateescape").rstrip("\n").rstrip(" ")


@contextmanager
def _captured_stdout() -> Iterator[int]:
    """Let file descriptor 1 be a memory file; gives a descriptor of that file."""
    sys.stdout.flush()
    outside = os.dup(1)
    capture = os.memfd_create("iptables-save")
    try:
        os.dup2(capture, 1)
        yield capture
    finally:
        os.dup2(outside, 1)
        os.close(outside)
        os.close(capture)


def _not(inverted: int) -> str:
    return "! " if inverted else ""


def _address_text(value: int, width: int) -> str:
    return str(ipaddress.IPv4Address(value)) if width == 32 else ipaddress.IPv6Address(value).compressed
