"""Sums that only grow, whatever becomes of counters."""

from hypothesis import given
from hypothesis import strategies as st

from kproxy_ipt.stats.ledger import CounterKey, Kind, Ledger

A = CounterKey("shop/web:http", "tcp", Kind.CONNECTIONS, "10.0.0.1:80")
B = CounterKey("shop/web:http", "tcp", Kind.CONNECTIONS, "10.0.0.2:80")
REJECTED = CounterKey("shop/web:http", "tcp", Kind.REJECTED)


def _started(**before: int) -> Ledger:
    ledger = Ledger()
    ledger.start({A: before.get("a", 0)} if before else {})
    return ledger


def _observe(ledger: Ledger, counts: dict[CounterKey, int]) -> None:
    with ledger.look() as look:
        ledger.observe(counts, look)


def test_nothing_is_counted_before_the_start() -> None:
    """And what was counted before does not count."""
    ledger = Ledger()
    _observe(ledger, {A: 5})
    ledger.ended(A, 7)
    ledger.start({A: 10})
    _observe(ledger, {A: 12})

    assert {A: 2} == ledger.sums


def test_counter_that_begins_anew_is_added() -> None:
    """A look that finds less than before finds a new life."""
    ledger = _started()
    for count in (10, 15, 3, 4):
        _observe(ledger, {A: count})

    assert {A: 19} == ledger.sums


def test_counter_that_ends_leaves_its_sum() -> None:
    """And its next life begins at 0, even if it counts more than the old one."""
    ledger = _started()
    _observe(ledger, {A: 10})
    ledger.ended(A, 13)
    _observe(ledger, {A: 40})

    assert {A: 53} == ledger.sums


def test_end_that_is_told_twice_as_late_counts_once() -> None:
    """A look may see the next life, or none, before anybody tells of the end."""
    for seen in ({A: 2}, {}):
        ledger = _started()
        _observe(ledger, {A: 10})
        _observe(ledger, dict(seen))
        ledger.ended(A, 13)
        _observe(ledger, {A: 5})

        assert {A: 18} == ledger.sums


def test_one_of_several_counters_ends() -> None:
    """Rejections at two addresses, 5 and 3, then one of them ends at 6 or at 9 and counts anew."""
    for end, again in ((6, 0), (9, 2)):
        ledger = _started()
        _observe(ledger, {REJECTED: 5 + 3})
        ledger.ended(REJECTED, end)
        _observe(ledger, {REJECTED: again + 3})

        assert {REJECTED: end + again + 3} == ledger.sums


def test_untold_end_of_one_of_several_adds_nothing() -> None:
    """Whose it was cannot be known; a sum that lacks something is better than one of too much."""
    ledger = _started()
    for count in (8, 3, 4):
        _observe(ledger, {REJECTED: count})

    assert {REJECTED: 9} == ledger.sums


def test_what_ends_during_a_look_is_left_out_of_it() -> None:
    """The look may have been made before or after."""
    ledger = _started()
    _observe(ledger, {A: 10, B: 1})
    with ledger.look() as look:
        ledger.ended(A, 12)
        ledger.observe({A: 11, B: 4}, look)

    assert {A: 12, B: 4} == ledger.sums


def test_forgotten_and_folded_sums_are_gone() -> None:
    """Folding moves a sum, forgetting drops it."""
    ledger = _started()
    _observe(ledger, {A: 10, B: 5})
    rest = CounterKey("shop/web:http", "tcp", Kind.CONNECTIONS)
    ledger.fold(A, rest)
    ledger.forget([B])

    assert {rest: 10} == ledger.sums


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["look", "end", "lost", "during", "late"])), max_size=30))
def test_sum_is_exact_if_ends_are_told(steps: list[tuple[int, str]]) -> None:
    """Any order of counting, looks and ends; what is lost is at most what was counted since the last look."""
    ledger, counter, truth, lost = _started(), 0, 0, 0
    since = 0
    for more, what in steps:
        counter, truth, since = counter + more, truth + more, since + more
        if what == "look":
            _observe(ledger, {A: counter})
            since = 0
        elif what == "end":
            ledger.ended(A, counter)
            counter = since = 0
        elif what == "during":
            with ledger.look() as look:
                ledger.ended(A, counter)
                ledger.observe({A: counter}, look)
            counter = since = 0
        elif what == "late":
            _observe(ledger, {})
            ledger.ended(A, counter)
            counter = since = 0
        else:
            _observe(ledger, {})
            _observe(ledger, {})  # from now on an end is that of another life
            lost += since
            counter = since = 0
    _observe(ledger, {A: counter})

    assert truth - lost == ledger.sums.get(A, 0)
