"""
Choosing the endpoint in one row of rules: dices, rotation, affinity.

- `random`: endpoint i of n is taken with probability 1/(n-i) by those connections that none before took, so each gets
  1/n in the end; the last one takes the rest without a dice.
- `rr`: endpoint i of n is taken by every (n-i)th connection that none before took. Of any n connections in a row each
  endpoint gets one. The kernel counts in each rule, atomically, and anew after the rule was written.

Source: kube-proxy v1.36, which writes ten decimals; xt_statistic, which keeps 31 bits.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Scheduler
from kproxy_ipt.ruleset.matches import (
    PROBABILITY_ONE,
    Comment,
    Match,
    Recent,
    StatisticNth,
    StatisticRandom,
)
from kproxy_ipt.ruleset.model import Rule
from kproxy_ipt.ruleset.targets import Jump
from kproxy_ipt.state.model import Endpoint

_HOST_MASK = {Family.IPV4: "255.255.255.255", Family.IPV6: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}


@lru_cache(maxsize=8192)
def one_in(remaining: int) -> StatisticRandom:
    """The dice that says yes once in *remaining* (2 or more), rounded as kube-proxy and iptables round."""
    return StatisticRandom(int(float(f"{1 / remaining:.10f}") * PROBABILITY_ONE + 0.5))


def affinity_match(chain: str, action: str, family: Family, *, timeout_s: int = 0) -> Recent:
    """
    The recent match over the list of one endpoint chain: remembers a client (`set`) or asks for it (`rcheck`).

    The kernel keeps the last 100 clients of each list unless the module xt_recent was loaded with another number.
    """
    return Recent(chain, action, _HOST_MASK[family], seconds=timeout_s, reap=bool(timeout_s))


def affinity_rules(
    service_port_text: str,
    endpoints: Sequence[tuple[Endpoint, str]],
    *,
    family: Family,
    timeout_s: int,
    with_comments: bool,
) -> Iterator[Rule]:
    """The rules that send known clients back, in the order of *endpoints*: a client of several goes to the first."""
    for endpoint, chain in endpoints:
        comment = _comment(service_port_text, endpoint) if with_comments else ()
        recent = affinity_match(chain, "rcheck", family, timeout_s=timeout_s)
        yield Rule(matches=(*comment, recent), target=Jump(chain))


def endpoint_rules(
    service_port_text: str,
    endpoints: Sequence[tuple[Endpoint, str]],
    *,
    scheduler: Scheduler,
    with_comments: bool,
) -> Iterator[Rule]:
    """
    The row of rules that spreads connections over *endpoints*.

    Args:
        service_port_text: For the comments.
        endpoints: Each with the name of its chain, 1 or more.
        scheduler: Who gets the next connection.
        with_comments: Whether each rule names its endpoint.
    """
    for position, (endpoint, chain) in enumerate(endpoints):
        remaining = len(endpoints) - position
        comment = _comment(service_port_text, endpoint) if with_comments else ()
        choice = (_choice(scheduler, remaining),) if remaining > 1 else ()
        yield Rule(matches=(*comment, *choice), target=Jump(chain))


def _comment(service_port_text: str, endpoint: Endpoint) -> tuple[Match, ...]:
    return (Comment(f"{service_port_text} -> {endpoint.text}"),)


def _choice(scheduler: Scheduler, remaining: int) -> Match:
    return StatisticNth(remaining) if scheduler is Scheduler.RR else one_in(remaining)
