"""
nf_tables tables as such, which the iptables programs create and never delete.

After a clean-up on the nft backend `ip nat` and its like stay behind with nothing in them, so that `iptables-save`
prints more than before our first run. This module takes them away again, if and only if they hold nothing.

What "nothing" means is read and the removal is asked for under one generation number of the ruleset: if anybody changed
anything in between, the kernel refuses.
"""

import errno
import struct
from collections.abc import Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import MissingPrivilegeError
from kproxy_ipt.kernel.nfnetlink import (
    NETFILTER,
    NFPROTO_IPV4,
    NFPROTO_IPV6,
    NFPROTO_UNSPEC,
    NLM_F_CREATE,
    NLM_F_DUMP,
    Request,
    exchange,
    exchange_batch,
    nested_attribute,
    nfnetlink_body,
    number_attribute,
    read_attributes,
    text_attribute,
)

_SUBSYSTEM = 10
_BASE = _SUBSYSTEM << 8
_NEW_TABLE, _GET_TABLE, _DELETE_TABLE, _NEW_CHAIN, _GET_CHAIN, _GET_GENERATION = 0, 1, 2, 3, 4, 16
_TABLE_NAME, _TABLE_FLAGS, _TABLE_USE = 1, 2, 3
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_USE, _CHAIN_TYPE = 1, 3, 4, 5, 6, 7
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2
_GENERATION_ID = 1
_POSTROUTING, _SOURCE_NAT_PRIORITY = 4, 100
_ACCEPT = 1
_NFGENMSG_SIZE = 4
_BUILT_IN = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})
_PROBE_TABLE = "kproxy-ipt-probe"
_PROTOCOL = {Family.IPV4: NFPROTO_IPV4, Family.IPV6: NFPROTO_IPV6}


def delete_void_table(family: Family, table: str) -> bool:
    """
    Delete an nf_tables table if it holds nothing.

    Nothing means: no rule, set, object or flow table, no chain but built-in base chains of iptables with policy ACCEPT.
    Tables with flags (dormant, owned by a process) are left alone.

    Args:
        family: The table's family: `ip` or `ip6`; tables of `inet` are never touched.
        table: `nat`, `filter`, ...

    Returns:
        Whether it was deleted. False if there is none, if it is not void, if it changed meanwhile, or if the kernel has
        no nf_tables.

    Raises:
        MissingPrivilegeError: CAP_NET_ADMIN is needed.
    """
    try:
        generation = _generation()
        if not _is_void(_PROTOCOL[family], table):
            return False
        order = Request(_BASE | _DELETE_TABLE, 0, nfnetlink_body(_PROTOCOL[family], text_attribute(_TABLE_NAME, table)))
        return not any(exchange_batch(_SUBSYSTEM, [order], generation))
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise MissingPrivilegeError("nf_tables may not be read or changed: CAP_NET_ADMIN is needed") from error
        return False


def nat_problem(family: Family) -> str:
    """
    Ask the kernel whether it has address translation for a family, without leaving a trace.

    A batch makes a table with a nat chain and then an impossible request, so that the kernel takes all of it back.

    Returns:
        "" if it has; otherwise one line with the reason.
    """
    protocol = _PROTOCOL[family]
    if _exists(protocol, "nat"):
        return ""
    name = text_attribute(_TABLE_NAME, _PROBE_TABLE)
    hook = nested_attribute(
        _CHAIN_HOOK,
        number_attribute(_HOOK_NUMBER, _POSTROUTING),
        number_attribute(_HOOK_PRIORITY, _SOURCE_NAT_PRIORITY),
    )
    chain = [text_attribute(_CHAIN_NAME, "probe"), hook, text_attribute(_CHAIN_TYPE, "nat")]
    absent = text_attribute(_TABLE_NAME, f"{_PROBE_TABLE}-absent")
    requests = [
        Request(_BASE | _NEW_TABLE, NLM_F_CREATE, nfnetlink_body(protocol, name)),
        Request(_BASE | _NEW_CHAIN, NLM_F_CREATE, nfnetlink_body(protocol, name, *chain)),
        Request(_BASE | _DELETE_TABLE, 0, nfnetlink_body(protocol, absent)),
    ]
    try:
        table_code, chain_code, _, whole = exchange_batch(_SUBSYSTEM, requests)
    except OSError as error:
        return f"the kernel does not answer about nf_tables: {error.strerror or error}"
    if whole in (errno.EPERM, errno.EACCES) or table_code in (errno.EPERM, errno.EACCES):
        return ""
    if whole or table_code:
        return f"the kernel has no nf_tables for {family} (CONFIG_NF_TABLES)"
    word = "CONFIG_IP6_NF_NAT" if family is Family.IPV6 else "CONFIG_IP_NF_NAT"
    return f"the kernel has no nat table for {family} ({word}, CONFIG_NFT_NAT)" if chain_code else ""


def _exists(protocol: int, table: str) -> bool:
    try:
        exchange(
            NETFILTER, Request(_BASE | _GET_TABLE, 0, nfnetlink_body(protocol, text_attribute(_TABLE_NAME, table)))
        )
    except OSError:
        return False
    return True


def _generation() -> int:
    answers = exchange(NETFILTER, Request(_BASE | _GET_GENERATION, 0, nfnetlink_body(NFPROTO_UNSPEC)))
    return _number(read_attributes(answers[0], _NFGENMSG_SIZE), _GENERATION_ID)


def _is_void(protocol: int, table: str) -> bool:
    question = Request(_BASE | _GET_TABLE, 0, nfnetlink_body(protocol, text_attribute(_TABLE_NAME, table)))
    attributes = read_attributes(exchange(NETFILTER, question)[0], _NFGENMSG_SIZE)
    if _number(attributes, _TABLE_FLAGS):
        return False
    used_by = _number(attributes, _TABLE_USE)
    dump = exchange(NETFILTER, Request(_BASE | _GET_CHAIN, NLM_F_DUMP, nfnetlink_body(protocol)))
    chains = [chain for body in dump if _text(chain := read_attributes(body, _NFGENMSG_SIZE), _CHAIN_TABLE) == table]
    # The use count of a table is the number of its chains, sets, objects and flow tables; that of a chain is the number
    # of its rules and of the jumps to it.
    return used_by == len(chains) and all(_is_void_chain(chain) for chain in chains)


def _is_void_chain(chain: Mapping[int, bytes]) -> bool:
    return (
        _text(chain, _CHAIN_NAME) in _BUILT_IN
        and _CHAIN_HOOK in chain
        and _number(chain, _CHAIN_POLICY) == _ACCEPT
        and _number(chain, _CHAIN_USE) == 0
    )


def _number(attributes: Mapping[int, bytes], kind: int) -> int:
    packed = attributes.get(kind, b"")
    return int(struct.unpack("!I", packed)[0]) if len(packed) == struct.calcsize("!I") else 0


def _text(attributes: Mapping[int, bytes], kind: int) -> str:
    return attributes.get(kind, b"").rstrip(b"\0").decode("utf-8", "replace")
