"""Two views of one service port: what changed, in words, endpoints and shares first."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from kproxy_ipt.trace.conditions import plain_share, share_words
from kproxy_ipt.trace.service_views import EndpointView, EntryKind, EntryView, ServiceView

_SHOWN_TOGETHER = 3
"""Endpoints with the same change of share that are named one by one; more are counted."""


def change_words(before: ServiceView, after: ServiceView) -> tuple[str, ...]:
    """
    What is different in *after*; () if both mean the same.

    Names of chains do not count, nor shares that differ by the rounding of probabilities.
    """
    return (
        *_endpoint_words("endpoint", before.endpoints, after.endpoints),
        *_endpoint_words("local endpoint", before.local_endpoints, after.local_endpoints),
        *_scheduler_words(before, after),
        *_affinity_words(before, after),
        *_entry_words(before.entries, after.entries),
        *_policy_words(before, after),
        *_list_words("masquerade traffic to the cluster IP", before.masquerade, after.masquerade),
        *_range_words(before.source_ranges, after.source_ranges),
        *_unread_words(before.unread, after.unread),
    )


def summary_words(view: ServiceView) -> tuple[str, ...]:
    """A service port that is there on one side only: its entries and endpoints."""
    entries = tuple(f"{_entry_name(entry)}: {entry.fate}" for entry in view.entries if not entry.is_counted)
    endpoints = tuple(
        f"{word} {one.destination}, share {share_words(one.share)}"
        for word, views in (("endpoint", view.endpoints), ("local endpoint", view.local_endpoints))
        for one in views
    )
    ranges = () if view.source_ranges is None else (f"source ranges: {_ranges(view.source_ranges)}",)
    policy = (f"policy of traffic from outside: {view.external_policy}",) if view.external_policy else ()
    affinity = (f"affinity {view.affinity_s} s",) if view.affinity_s else ()
    scheduler = (f"scheduler {view.scheduler}",) if view.scheduler not in ("", "random") else ()
    unread = tuple(f"unusual rule: {line}" for line in view.unread)
    return (*entries, *ranges, *policy, *scheduler, *affinity, *endpoints, *unread)


def _endpoint_words(word: str, before: Sequence[EndpointView], after: Sequence[EndpointView]) -> Iterator[str]:
    old = {one.destination: one for one in before}
    new = {one.destination: one for one in after}
    for name in sorted(new.keys() - old.keys()):
        yield f"{word} {name} added, share {share_words(new[name].share)}"
    for name in sorted(old.keys() - new.keys()):
        yield f"{word} {name} removed"
    both = [name for name in new if name in old]
    yield from _share_words(word, both, lambda name: (plain_share(old[name].share), plain_share(new[name].share)))
    for name in both:
        if old[name].is_hairpin_masqueraded != new[name].is_hairpin_masqueraded:
            yield f"{word} {name}: connections to itself {_are(new[name].is_hairpin_masqueraded)} masqueraded"


def _are(positive: bool) -> str:  # noqa: FBT001 - the answer to a yes-or-no question
    return "are now" if positive else "are no longer"


def _share_words(
    word: str, names: Sequence[str], shares_of: Callable[[str], tuple[Fraction, Fraction]]
) -> Iterator[str]:
    groups: dict[tuple[Fraction, Fraction], list[str]] = {}
    for name in names:
        groups.setdefault(shares_of(name), []).append(name)
    for (old, new), members in groups.items():
        if old == new:
            continue
        change = f"{share_words(old)} -> {share_words(new)}"
        if len(members) > _SHOWN_TOGETHER:
            yield f"share of each of {len(members)} {word}s: {change}"
        else:
            yield from (f"share of {word} {name}: {change}" for name in members)


def _scheduler_words(before: ServiceView, after: ServiceView) -> Iterator[str]:
    """With one endpoint there is no choice, and none that changed."""
    if before.scheduler and after.scheduler and before.scheduler != after.scheduler:
        yield f"scheduler {before.scheduler} -> {after.scheduler}"


def _affinity_words(before: ServiceView, after: ServiceView) -> Iterator[str]:
    if before.affinity_s != after.affinity_s:
        if not before.affinity_s:
            yield f"affinity on ({after.affinity_s} s)"
        elif not after.affinity_s:
            yield f"affinity off (was {before.affinity_s} s)"
        else:
            yield f"affinity {before.affinity_s} s -> {after.affinity_s} s"
        return
    for word, old_views, new_views in (
        ("endpoint", before.endpoints, after.endpoints),
        ("local endpoint", before.local_endpoints, after.local_endpoints),
    ):
        old = {one.destination: one.affinity_s for one in old_views}
        for one in new_views:
            known = old.get(one.destination, one.affinity_s)
            if known != one.affinity_s:
                yield f"affinity of {word} {one.destination}: {known} s -> {one.affinity_s} s"


def _entry_name(entry: EntryView) -> str:
    place = entry.address or "any address of the node"
    if not entry.address and entry.kind is not EntryKind.REFUSED:
        return f"{entry.kind} {entry.port}"
    return f"{entry.kind} [{place}]:{entry.port}" if ":" in place else f"{entry.kind} {place}:{entry.port}"


def _entry_words(before: Sequence[EntryView], after: Sequence[EntryView]) -> Iterator[str]:
    old = {_place(entry): entry for entry in before}
    new = {_place(entry): entry for entry in after}
    for place, entry in new.items():
        if place not in old:
            yield _counting("on") if entry.is_counted else f"entry {_entry_name(entry)} added: {entry.fate}"
        elif old[place].fate != entry.fate:
            yield f"entry {_entry_name(entry)}: {old[place].fate} -> {entry.fate}"
    for place, entry in old.items():
        if place not in new:
            yield _counting("off") if entry.is_counted else f"entry {_entry_name(entry)} removed"
    repeated = Counter(map(_place, after)) - Counter(map(_place, before))
    missing = Counter(map(_place, before)) - Counter(map(_place, after))
    yield from (f"entry {_entry_name(new[place])}: once more than before" for place in repeated if place in old)
    yield from (f"entry {_entry_name(new[place])}: once less than before" for place in missing if place in new)


def _place(entry: EntryView) -> tuple[EntryKind, str, int, bool]:
    return (entry.kind, entry.address, entry.port, entry.is_counted)


def _counting(state: str) -> str:
    return f"counting of node port traffic to loopback addresses {state}"


def _policy_words(before: ServiceView, after: ServiceView) -> Iterator[str]:
    if before.external_policy and after.external_policy and before.external_policy != after.external_policy:
        yield f"policy of traffic from outside: {before.external_policy} -> {after.external_policy}"
    elif before.external != after.external:
        yield f"traffic from outside: {_steps(before.external)} -> {_steps(after.external)}"


def _steps(steps: Sequence[str]) -> str:
    return "; ".join(steps) or "nothing"


def _list_words(word: str, before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    if before != after:
        yield f"{word}: {_steps(before) if before else 'never'} -> {_steps(after) if after else 'never'}"


def _range_words(before: Sequence[str] | None, after: Sequence[str] | None) -> Iterator[str]:
    if before is None or after is None:
        if before != after:
            yield f"source ranges: {_ranges(before)} -> {_ranges(after)}"
        return
    yield from (f"source range {prefix} added" for prefix in after if prefix not in before)
    yield from (f"source range {prefix} removed" for prefix in before if prefix not in after)


def _ranges(ranges: Sequence[str] | None) -> str:
    return "every source" if ranges is None else ", ".join(ranges) or "no source"


def _unread_words(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    old, new = Counter(before), Counter(after)
    yield from (f"unusual rule added: {line}" for line in (new - old).elements())
    yield from (f"unusual rule removed: {line}" for line in (old - new).elements())
    if old == new and before != after:
        yield "unusual rules stand in another order"
