"""
Accounting objects: named counters of the kernel that the nfacct match counts into.

They are created where missing and never deleted: other programs may read them, and rules of an earlier run use them.

Source: `NFNL_SUBSYS_ACCT` of nfnetlink; a name has at most 31 bytes.
"""

import errno
import struct
from collections.abc import Iterable, Mapping

from kproxy_ipt.kernel.nfnetlink import (
    NETFILTER,
    NFPROTO_UNSPEC,
    NLM_F_CREATE,
    NLM_F_EXCL,
    Request,
    exchange,
    nfnetlink_body,
    read_attributes,
    text_attribute,
)
from kproxy_ipt.ruleset.model import Counters

CT_STATE_INVALID_DROPPED = "ct_state_invalid_dropped_pkts"
LOCALHOST_NODE_PORTS_ACCEPTED = "localhost_nps_accepted_pkts"
_SUBSYSTEM = 7
_NEW = _SUBSYSTEM << 8
_GET = _SUBSYSTEM << 8 | 1
_NAME = 1
_PACKETS = 2
_BYTES = 3
_NFGENMSG_SIZE = 4
_LONGEST_NAME = 31


def ensure_counters(names: Iterable[str]) -> frozenset[str]:
    """
    Create the accounting objects that are missing; those that exist keep their counts.

    Returns:
        The names that exist now. Without privilege or kernel support it is empty: no exception, since rules work
        without accounting.
    """
    return frozenset(name for name in names if _create(name))


def read_counters(names: Iterable[str]) -> Mapping[str, Counters]:
    """The counts of those *names* that exist and may be read; nothing is reset."""
    found = {}
    for name in names:
        counters = _read(name)
        if counters is not None:
            found[name] = counters
    return found


def _create(name: str) -> bool:
    if not 0 < len(name.encode()) <= _LONGEST_NAME:
        return False
    request = Request(_NEW, NLM_F_CREATE | NLM_F_EXCL, nfnetlink_body(NFPROTO_UNSPEC, text_attribute(_NAME, name)))
    try:
        exchange(NETFILTER, request)
    except OSError as error:
        return error.errno in (errno.EEXIST, errno.EBUSY)
    return True


def _read(name: str) -> Counters | None:
    try:
        answers = exchange(NETFILTER, Request(_GET, 0, nfnetlink_body(NFPROTO_UNSPEC, text_attribute(_NAME, name))))
    except OSError:
        return None
    if not answers:
        return None
    attributes = read_attributes(answers[0], _NFGENMSG_SIZE)
    return Counters(_number(attributes.get(_PACKETS)), _number(attributes.get(_BYTES)))


def _number(packed: bytes | None) -> int:
    return int(struct.unpack("!Q", packed)[0]) if packed is not None and len(packed) == struct.calcsize("!Q") else 0
