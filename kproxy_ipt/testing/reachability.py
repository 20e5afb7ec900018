"""
What becomes of traffic to services at one moment, read off saved tables; and what must not happen between two moments.

A shallow view that is cheap enough to take after every transaction: which endpoints an address of a service leads to,
which addresses are refused or dropped, and which are restricted to source ranges without anybody dropping the rest.
Conditions other than address, protocol and port are not looked at.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from kproxy_ipt.ruleset.scan import SavedChain, SavedTables, jumps_to

_DESTINATION = re.compile(r" -d ([^ ]+)")
_PROTOCOL = re.compile(r" -p ([^ ]+)")
_PORT = re.compile(r" --dport ([0-9]+)")
_ENDPOINT = re.compile(r" --to-destination ([^ ]+)")

Address = tuple[str, str, str]
"""Destination prefix ("" for a node port), protocol and port of a rule."""


class Reachability(msgspec.Struct, frozen=True):
    """
    What becomes of traffic to each address.

    Attributes:
        endpoints: Where the first rule for an address leads to: `ip:port` texts, none for a chain without any.
        refused: Addresses that the table filter refuses or drops.
        known_endpoints: All that any chain translates to, whether or not an address leads there.
        unguarded: Addresses restricted to source ranges, for which nobody drops the rest.
    """

    endpoints: Mapping[Address, frozenset[str]]
    refused: frozenset[Address]
    known_endpoints: frozenset[str]
    unguarded: frozenset[Address]


def _address(line: str) -> Address | None:
    destination, protocol, port = _DESTINATION.search(line), _PROTOCOL.search(line), _PORT.search(line)
    if not (protocol and port):
        return None
    return (destination[1] if destination else "", protocol[1], port[1])


def _rules(chains: Mapping[str, SavedChain], *names: str) -> Iterator[tuple[Address, str]]:
    for name in names:
        for line in chains[name].lines if name in chains else ():
            address = _address(line)
            if address is not None:
                yield address, line


def _endpoints(chains: Mapping[str, SavedChain], start: str) -> frozenset[str]:
    found: set[str] = set()
    seen, waiting = {start}, [start]
    while waiting:
        for line in chains[waiting.pop()].lines:
            endpoint = _ENDPOINT.search(line)
            target = jumps_to(line)
            if endpoint:
                found.add(endpoint[1])
            elif target is not None and target in chains and target not in seen:
                seen.add(target)
                waiting.append(target)
    return frozenset(found)


def reachability(saved: SavedTables) -> Reachability:
    """What *saved*, the tables of one family, make of traffic from outside."""
    nat, filters = saved.tables.get("nat", {}), saved.tables.get("filter", {})
    entrance = nat["PREROUTING"].lines if "PREROUTING" in nat else ()
    entered = any(jumps_to(line) == "KUBE-SERVICES" for line in entrance)
    dispatch: dict[Address, str] = {}
    for address, line in _rules(nat, "KUBE-SERVICES", "KUBE-NODEPORTS") if entered else ():
        dispatch.setdefault(address, jumps_to(line) or "")
    guarded = {address for address, _ in _rules(filters, "KUBE-PROXY-FIREWALL")}
    return Reachability(
        endpoints={address: _endpoints(nat, chain) for address, chain in dispatch.items() if chain in nat},
        refused=frozenset(address for address, _ in _rules(filters, "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES")),
        known_endpoints=frozenset(
            found[1] for chain in nat.values() for line in chain.lines if (found := _ENDPOINT.search(line))
        ),
        unguarded=frozenset(
            address for address, chain in dispatch.items() if chain.startswith("KUBE-FW-") and address not in guarded
        ),
    )


def gaps(states: Sequence[Reachability]) -> tuple[str, ...]:
    """
    What went wrong between the first and the last of *states*, as lines of text.

    An address that had endpoints at first and has some in the end must have some at every moment in between, and only
    ones that it had before or that have a chain afterwards; one that was treated in any way must not slip through
    untreated; and no restricted address may be open to everybody.
    """
    if not states:
        return ()
    first, last = states[0], states[-1]
    return tuple(
        f"state {number}: {problem}"
        for number, state in enumerate(states)
        for problem in (*_lost(first, state, last), *_slipping(first, state, last), *_open(state))
    )


def _lost(first: Reachability, state: Reachability, last: Reachability) -> Iterable[str]:
    for address, before in first.endpoints.items():
        now = state.endpoints.get(address, frozenset())
        if before and last.endpoints.get(address) and not now:
            yield f"{address} has no endpoint"
        if not now <= before | last.known_endpoints:
            yield f"{address} leads to {sorted(now - before - last.known_endpoints)}"


def _slipping(first: Reachability, state: Reachability, last: Reachability) -> Iterable[str]:
    treated = (set(first.endpoints) | first.refused) & (set(last.endpoints) | last.refused)
    for address in treated - set(state.endpoints) - state.refused:
        yield f"{address} is neither translated nor refused"


def _open(state: Reachability) -> Iterable[str]:
    return (f"{address} is open to everybody" for address in state.unguarded)
