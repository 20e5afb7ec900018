"""
What a rule of nf_tables had counted when it was deleted, read from the message that tells about it.

The kernel tells deletions of rules with everything the rule had, its counter included, after the rule was last met by
a packet: nothing that it counted is missing, whoever deleted it and whenever. (Of chains, tables and sets it tells
names alone since Linux 6.3; rules were left as they were, since `nft monitor` needs them.)

A message is not decoded expression by expression but searched for the three things that matter: most rules that a sync
deletes are of no interest, and there may be 100,000 in one transaction.

Source: `nf_tables_rule_notify`, `nft_counter_do_dump`, `nft_match_dump` of Linux.
"""

import re
import struct

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.nfnetlink import NESTED, NFPROTO_IPV4, NFPROTO_IPV6
from kproxy_ipt.stats.ended_rule import EndedRule

_FAMILIES = {NFPROTO_IPV4: Family.IPV4, NFPROTO_IPV6: Family.IPV6}


def _head(length: int, kind: int) -> bytes:
    return re.escape(struct.pack("=HH", length, kind))


_TABLE = re.compile(b"(?:" + _head(8, 1) + rb"(nat)\0|" + _head(11, 1) + rb"(filter)\0)")
_ENDPOINT_CHAIN = re.compile(_head(30, 2) + rb"(KUBE-SEP-[A-Z2-7]{16})\0")
# NFTA_EXPR_NAME, NFTA_EXPR_DATA, NFTA_COUNTER_BYTES, NFTA_COUNTER_PACKETS; the kernel sets no flag of nesting here.
_COUNTER = re.compile(
    _head(12, 1)
    + rb"counter\0"
    + b"(?:"
    + _head(28, 2)
    + b"|"
    + _head(28, 2 | NESTED)
    + b")"
    + _head(12, 1)
    + rb".{8}"
    + _head(12, 2)
    + rb"(.{8})",
    re.DOTALL,
)
# NFTA_MATCH_NAME, NFTA_MATCH_REV, NFTA_MATCH_INFO of the match `comment`.
_COMMENT = re.compile(_head(12, 1) + rb"comment\0" + _head(8, 2) + rb".{4}..\x03\0([^\0]{1,255})\0", re.DOTALL)
_MARKS = b"KUBE-MARK-MASQ\0"
_NFGENMSG_SIZE = 4


def ended_rule(body: bytes) -> EndedRule | None:
    """
    Read a message about a deleted rule.

    Args:
        body: What follows the netlink header.

    Returns:
        None for a rule whose counter means nothing here, and for one of another family or table.
    """
    family = _FAMILIES.get(body[0]) if body else None
    table = _TABLE.match(body, _NFGENMSG_SIZE)
    if family is None or table is None:
        return None
    chain = ""
    if table[1]:
        found = _ENDPOINT_CHAIN.match(body, table.end())
        if found is None or _MARKS in body:  # the other rule of such a chain marks hairpin packets
            return None
        chain = found[1].decode()
    counter = _COUNTER.search(body)
    if counter is None:
        return None
    comment = _COMMENT.search(body)
    text = comment[1].decode("utf-8", "replace") if comment else ""
    return EndedRule(family, chain, text, int.from_bytes(counter[1], "big")) if chain or text else None
