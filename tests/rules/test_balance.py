"""Shares of endpoints, and the memory of session affinity."""

from collections.abc import Sequence

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Scheduler
from kproxy_ipt.rules.balance import affinity_match, affinity_rules, endpoint_rules, one_in
from kproxy_ipt.ruleset.matches import PROBABILITY_ONE, Comment, Recent, StatisticNth, StatisticRandom
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.render import render_rule
from kproxy_ipt.state.model import Endpoint
from kproxy_ipt.testing.desired import desired_for, rule_lines
from kproxy_ipt.testing.objects import endpoint_slice, service


def _endpoints(count: int) -> list[tuple[Endpoint, str]]:
    texts = [f"10.0.{number // 250}.{number % 250}:80" for number in range(count)]
    return [(Endpoint(address=text[:-3], port=80, text=text), f"SEP{n}") for n, text in enumerate(texts)]


def _rules(count: int, *, scheduler: Scheduler = Scheduler.RANDOM, with_comments: bool = True) -> list[Rule]:
    return list(endpoint_rules("ns/web", _endpoints(count), scheduler=scheduler, with_comments=with_comments))


def _known(count: int, *, with_comments: bool = True) -> list[Rule]:
    endpoints = _endpoints(count)
    return list(affinity_rules("ns/web", endpoints, family=Family.IPV4, timeout_s=60, with_comments=with_comments))


def _shares(rules: Sequence[Rule]) -> list[float]:
    """What part of all connections each rule takes."""
    left, shares = 1.0, []
    for rule in rules:
        dice = [match for match in rule.matches if isinstance(match, StatisticRandom)]
        share = left * (dice[0].probability / PROBABILITY_ONE if dice else 1.0)
        shares.append(share)
        left -= share
    return shares


@pytest.mark.parametrize("count", [1, 2, 3, 7, 319, 1000, 5000])
def test_every_endpoint_gets_its_share(count: int) -> None:
    """Up to 5,000 endpoints no share is off by one percent, and nothing is left over."""
    shares = _shares(_rules(count))

    assert max(abs(share * count - 1) for share in shares) < 0.01
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("count", [1, 2, 10])
def test_last_endpoint_takes_the_rest_without_a_dice(count: int) -> None:
    """Only the last rule is unconditional."""
    dice = [any(isinstance(match, StatisticRandom) for match in rule.matches) for rule in _rules(count)]

    assert [*[True] * (count - 1), False] == dice


@pytest.mark.parametrize(
    ("remaining", "text"),
    [
        (2, "0.50000000000"),
        (3, "0.33333333349"),
        (10, "0.10000000009"),
        (1000, "0.00100000016"),
        (100000, "0.00001000008"),
    ],
)
def test_probability_is_the_one_that_the_kernel_shows_for_kube_proxy(remaining: int, text: str) -> None:
    """Rounded to ten decimals first and to 31 bits then, as on the way through iptables."""
    line = render_rule("X", Rule(matches=(one_in(remaining),)))

    assert line.endswith(f"--probability {text}")


def test_probabilities_fall_strictly() -> None:
    """More endpoints never mean the same dice, up to ten thousand."""
    numbers = [one_in(remaining).probability for remaining in range(2, 10001)]

    assert numbers == sorted(set(numbers), reverse=True)


def test_known_clients_are_asked_for_before_any_dice() -> None:
    """With affinity each endpoint has a rule that asks for the client, all in front of the balancing."""
    web = service(affinity_timeout_s=60)
    desired = desired_for(web, endpoint_slice(web, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]))
    (chain,) = (chain for name, chain in desired.ruleset.tables["nat"].chains.items() if name.startswith("KUBE-SVC-"))
    asking = [any(isinstance(match, Recent) for match in rule.matches) for rule in chain.rules]

    assert [True] * 3 + [False] * 3 == asking
    assert [rule.target for rule in chain.rules[:3]] == [rule.target for rule in chain.rules[3:]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rotation_takes_every_nth_of_those_that_are_left(count: int) -> None:
    """Rule i of n counts n - i; the last takes what is left."""
    matches = [rule.matches for rule in _rules(count, scheduler=Scheduler.RR, with_comments=False)]

    assert [*[(StatisticNth(count - position),) for position in range(count - 1)], ()] == matches


def test_affinity_rule_forgets_after_the_timeout() -> None:
    """The list has the name of the chain; old entries are reaped."""
    match = affinity_match("SEP", "rcheck", Family.IPV6, timeout_s=60)

    assert Recent("SEP", "rcheck", "ffff:" * 7 + "ffff", seconds=60, reap=True) == match


@pytest.mark.parametrize(("timeout_s", "seconds"), [(1, 1), (86400, 86400), (10800, 10800)])
def test_timeout_of_the_api_is_written_in_seconds(timeout_s: int, seconds: int) -> None:
    """No other unit comes in between."""
    web = service(affinity_timeout_s=timeout_s)
    desired = desired_for(web, endpoint_slice(web))
    (chain,) = (name for name in desired.ruleset.tables["nat"].chains if name.startswith("KUBE-SVC-"))

    assert f" --seconds {seconds} --reap " in rule_lines(desired, "nat", chain)[0]


def test_comments_are_left_out_on_demand() -> None:
    """In a large cluster the rules of endpoints carry none."""
    rules = [*_known(3, with_comments=False), *_rules(3, with_comments=False)]

    assert not [match for rule in rules for match in rule.matches if isinstance(match, Comment)]
