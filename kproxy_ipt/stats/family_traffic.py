"""
The connections of one family as a daemon counts them: names of chains, a ledger, and what the last look found.

Chains are told apart by name, and names are computed from the state. So a chain is known before it is written, and
forgotten once nobody counts its endpoint any more. Endpoints that leave keep their sums, the latest some of each
service port by themselves and earlier ones as one, so that neither memory nor metrics grow with every pod that ever
was. The rules of a Service that is set aside go on leading to them: such endpoints are not gone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.names import endpoint_chain_name
from kproxy_ipt.ruleset.counted import REFUSAL, CountedTables
from kproxy_ipt.state.model import ServiceState
from kproxy_ipt.state.tracker import ServiceName, States
from kproxy_ipt.stats.choices import choices_of
from kproxy_ipt.stats.ended_rule import EndedRule
from kproxy_ipt.stats.ledger import CounterKey, Kind, Ledger, Look
from kproxy_ipt.stats.model import EndpointTraffic, ServiceTraffic

MOST_GONE = 20
"""Endpoints of one service port that are gone and have a sum of their own."""


class FamilyTraffic:
    """
    Sums of one family; not safe from several threads at once.

    Attributes:
        family: Of the addresses.
        ledger: The sums.
    """

    def __init__(self, family: Family) -> None:
        """Know nothing yet: `expect` comes first, then `start`, then any of the others."""
        self.family = family
        self.ledger = Ledger()
        self._states: dict[ServiceName, States] = {}
        self._keys: dict[str, CounterKey] = {}
        self._gone: dict[ServiceName, dict[CounterKey, None]] = {}
        self._protocols: dict[str, str] = {}
        self._seen = CountedTables()

    @property
    def invalid_dropped(self) -> int:
        """Packets that connection tracking found invalid, as of the last look."""
        return self._seen.invalid

    def expect(self, changes: Mapping[ServiceName, States]) -> None:
        """Know the chains that a sync is about to write; those that it deletes stay known."""
        for states in changes.values():
            for state in states:
                self._protocols[state.service_port.text] = state.service_port.protocol
                self._keys.update(_chain_keys(state))

    def settle(self, changes: Mapping[ServiceName, States]) -> None:
        """The sync of *changes* is over, and what it ended was told: forget what is gone for good."""
        for name, states in changes.items():
            present = dict(chain for state in states for chain in _chain_keys(state))
            former = dict(chain for state in self._states.pop(name, ()) for chain in _chain_keys(state))
            gone = self._gone.pop(name, {})
            for chain in former.keys() - present.keys():
                gone[former[chain]] = None
            if states:
                self._states[name] = states
                self._keep_gone(name, {key: None for key in gone if key not in present.values()})
            else:
                self._forget([*former.values(), *gone])

    def _forget(self, keys: Sequence[CounterKey]) -> None:
        for text in {key.service_port for key in keys}:
            protocol = self._protocols.pop(text, "")
            self.ledger.forget(CounterKey(text, protocol, kind) for kind in Kind)
        self.ledger.forget(keys)
        for key in keys:
            self._keys.pop(_chain_of(key), None)

    def _keep_gone(self, name: ServiceName, gone: dict[CounterKey, None]) -> None:
        """Let early ones of many endpoints that are gone be one sum."""
        for key in list(gone)[:-MOST_GONE]:
            self.ledger.fold(key, CounterKey(key.service_port, key.protocol, key.kind))
            self._keys.pop(_chain_of(key), None)
            del gone[key]
        if gone:
            self._gone[name] = gone

    def start(self, seen: CountedTables) -> None:
        """Count from now on; *seen* is what the kernel had counted before."""
        self._seen = seen
        self.ledger.start(dict(self._counts(seen)))

    def observe(self, seen: CountedTables, look: Look) -> None:
        """Take in a look at everything."""
        self._seen = seen
        self.ledger.observe(dict(self._counts(seen)), look)

    def ended(self, rule: EndedRule) -> None:
        """A rule of this family has gone."""
        key = self._keys.get(rule.chain) or self._refusal_key(rule.comment)
        if key is not None:
            self.ledger.ended(key, rule.packets)

    def _counts(self, seen: CountedTables) -> Iterator[tuple[CounterKey, int]]:
        for chain, packets in seen.endpoints.items():
            if chain in self._keys:
                yield self._keys[chain], packets
        refusals: dict[CounterKey, int] = defaultdict(int)
        for comment, packets in seen.refusals.items():
            key = self._refusal_key(comment)
            if key is not None:
                refusals[key] += packets
        yield from refusals.items()

    def _refusal_key(self, comment: str) -> CounterKey | None:
        found = REFUSAL.fullmatch(comment)
        if found is None or found[1] not in self._protocols:
            return None
        return CounterKey(found[1], self._protocols[found[1]], Kind.REJECTED if found[2] else Kind.DROPPED)

    def services(self, only: AbstractSet[ServiceName] | None = None) -> tuple[ServiceTraffic, ...]:
        """
        Everything that is known, by service port; takes a while where there are many.

        Shares are those of the rules that the last look found.

        Args:
            only: Services to tell of, None for all.

        Returns:
            Sorted by text and protocol.
        """
        gone: dict[str, list[CounterKey]] = defaultdict(list)
        for key in (key for keys in self._gone.values() for key in keys):
            gone[key.service_port].append(key)
        found = (
            self._service(state, gone[state.service_port.text]) for states in self._states_of(only) for state in states
        )
        return tuple(sorted(found, key=lambda one: (one.service_port, one.protocol)))

    def _states_of(self, only: AbstractSet[ServiceName] | None) -> Iterable[States]:
        return self._states.values() if only is None else (self._states.get(name, ()) for name in only)

    def _service(self, state: ServiceState, gone: list[CounterKey]) -> ServiceTraffic:
        port, sums = state.service_port, self.ledger.sums
        choices = choices_of(self._seen.choices, port.text, port.protocol)
        reached = choices.reached
        keys = {key: chain for chain, key in _chain_keys(state)} | {key: _chain_of(key) for key in gone}
        present = sorted(key for key, chain in keys.items() if chain in reached)
        absent = sorted(key for key, chain in keys.items() if chain not in reached and (key in gone or sums.get(key)))
        endpoints = [choices.endpoint(keys[key], key.endpoint, sums.get(key, 0)) for key in present]
        endpoints += [
            EndpointTraffic(endpoint=key.endpoint, connections=sums.get(key, 0), is_gone=True) for key in absent
        ]
        earlier = sums.get(CounterKey(port.text, port.protocol, Kind.CONNECTIONS), 0)
        skew, probability = choices.judge(port.affinity_timeout_s)
        return ServiceTraffic(
            service_port=port.text,
            protocol=port.protocol,
            family=self.family,
            connections=earlier + sum(one.connections for one in endpoints),
            rejected=sums.get(CounterKey(port.text, port.protocol, Kind.REJECTED), 0),
            dropped=sums.get(CounterKey(port.text, port.protocol, Kind.DROPPED), 0),
            affinity_s=port.affinity_timeout_s,
            endpoints=tuple(endpoints),
            skew=skew,
            probability=probability,
        )


def _chain_of(key: CounterKey) -> str:
    return endpoint_chain_name(key.service_port, key.protocol, key.endpoint)


def _chain_keys(state: ServiceState) -> Iterator[tuple[str, CounterKey]]:
    """The chain of each endpoint, usable or not, and what its counter means."""
    text, protocol = state.service_port.text, state.service_port.protocol
    for endpoint in state.endpoints:
        name = endpoint_chain_name(text, protocol, endpoint.text)
        yield name, CounterKey(text, protocol, Kind.CONNECTIONS, endpoint.text)
