"""The kernel in memory behaves as `iptables-restore --noflush` does."""

import pytest

from kproxy_ipt.errors import RestoreError
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.testing.fake_kernel import FakeKernel

LOADED = "*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-A B -j RETURN\n-A PREROUTING -j A\nCOMMIT\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-A A -j MISSING", "MISSING, which does not exist"),
        ("-A MISSING -j RETURN", "no chain MISSING"),
        ("-I MISSING 1 -j RETURN", "no chain MISSING"),
        ("-D A -j RETURN", "bad rule"),
        ("-X B", "not empty"),
        (":B - [0:0]\n-X B", "B, which does not exist"),
        ("-Z A", "unknown command"),
    ],
)
def test_impossible_line_refuses_the_whole_transaction(line: str, message: str) -> None:
    """What stood before is still there, and what stood in front of the bad line is not."""
    kernel = FakeKernel(LOADED)
    before = kernel.save()

    with pytest.raises(RestoreError, match=message):
        kernel.restore(f"*nat\n:NEW - [0:0]\n{line}\nCOMMIT\n")
    assert kernel.save() == before


def test_transactions_before_a_refused_one_stay() -> None:
    """The error tells the line and how many were applied."""
    kernel = FakeKernel(LOADED)

    with pytest.raises(RestoreError) as caught:
        kernel.restore("*filter\n:C - [0:0]\nCOMMIT\n*nat\n-A A -j MISSING\nCOMMIT\n*nat\n:D - [0:0]\nCOMMIT\n")
    assert (caught.value.line, caught.value.rule, caught.value.committed) == (6, "-A A -j MISSING", 1)
    assert kernel.saved().chain("filter", "C") is not None
    assert kernel.saved().chain("nat", "D") is None


def test_chain_line_empties_a_chain_of_ours_and_sets_a_policy_of_theirs() -> None:
    """A built-in chain keeps its rules."""
    kernel = FakeKernel(LOADED)
    kernel.restore("*nat\n:B - [0:0]\n:PREROUTING DROP [0:0]\nCOMMIT\n")
    nat = kernel.saved().tables["nat"]

    assert nat["B"].lines == ()
    assert (nat["PREROUTING"].policy, nat["PREROUTING"].lines) == ("DROP", ("-A PREROUTING -j A",))


def test_rules_go_where_they_are_told() -> None:
    """Inserted at a position, appended at the end, deleted where they are equal in meaning."""
    kernel = FakeKernel(LOADED)
    kernel.restore(
        "*nat\n-I B 2 -j A\n-I B 1 -s 10.0.0.1/32 -j DROP\n-D B -j RETURN\n-D B -s 10.0.0.1 -j DROP\nCOMMIT\n"
    )

    assert kernel.saved().tables["nat"]["B"].lines == ("-A B -j A",)


def test_counters_live_as_long_as_their_rule() -> None:
    """A rule that is written again starts from zero, others go on."""
    kernel = FakeKernel(LOADED.replace("-A A -j B", "[3:180] -A A -j B").replace("-A B -j", "[2:120] -A B -j"))
    kernel.restore("*nat\n:B - [0:0]\n-A B -j RETURN\nCOMMIT\n")

    assert "[3:180] -A A -j B\n" in kernel.save(counters=True)
    assert "[0:0] -A B -j RETURN\n" in kernel.save(counters=True)


def test_transaction_fails_once_when_told() -> None:
    """The n-th from now, and the one after it works again."""
    kernel = FakeKernel()
    kernel.fail_at(2)

    with pytest.raises(RestoreError, match="refused as told"):
        kernel.restore("*nat\n:A - [0:0]\nCOMMIT\n*nat\n:B - [0:0]\nCOMMIT\n")
    kernel.restore("*nat\n:C - [0:0]\nCOMMIT\n")
    assert [name for name in kernel.saved().tables["nat"] if len(name) == 1] == ["A", "C"]
    assert kernel.commits == 2


def test_observer_sees_every_transaction() -> None:
    """It is called with the kernel as it is at that moment."""
    seen: list[int] = []
    kernel = FakeKernel(on_commit=lambda changed: seen.append(changed.save().count("\n:X")))
    kernel.restore("*nat\n:X1 - [0:0]\nCOMMIT\n*nat\n:X2 - [0:0]\nCOMMIT\n")

    assert seen == [1, 2]


def test_only_void_tables_can_be_removed() -> None:
    """A table with a rule in it is in use."""
    kernel = FakeKernel("*filter\nCOMMIT\n" + LOADED)
    kernel.apply(Plan(void_tables=("filter",)))

    assert set(kernel.saved().tables) == {"nat"}
    with pytest.raises(RestoreError, match="not void"):
        kernel.apply(Plan(void_tables=("nat",)))


def test_save_of_a_save_is_the_same() -> None:
    """What is printed can be loaded again."""
    text = FakeKernel(LOADED).save()

    assert FakeKernel(text).save() == text
