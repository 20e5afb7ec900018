"""Walks as text: what is printed once, what stands in the margin, which names are found."""

from fractions import Fraction

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch, ShapeConfig
from kproxy_ipt.errors import RulesetError
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port
from kproxy_ipt.trace.distribution import distribution, nominal
from kproxy_ipt.trace.naming import find_service, service_of
from kproxy_ipt.trace.packet import Host, Outcome, Packet, Step
from kproxy_ipt.trace.tree import percent, short_line, tree_lines
from kproxy_ipt.trace.walk import walk


def _rules(endpoints: int) -> Ruleset:
    web = service(namespace="shop", ports=[service_port(80, name="http"), service_port(443, name="https")])
    addresses = [f"10.244.{number // 250}.{number % 250 + 1}" for number in range(endpoints)]
    return with_base_chains(desired_for(web, endpoint_slice(web, addresses)))


def _walk(endpoints: int) -> tuple[Outcome, ...]:
    packet = Packet(family=Family.IPV4, source="10.0.0.1", destination="10.96.0.10", destination_port=80)
    return walk(_rules(endpoints), packet, Host())


@pytest.mark.parametrize("endpoints", [1, 2, 3, 7, 10, 100, 999])
def test_meant_shares_are_found_behind_the_rounding(endpoints: int) -> None:
    """Each of N endpoints gets exactly 1/N once the 31 bits of the kernel are seen through."""
    shares = {nominal(outcome.share) for outcome in distribution(_walk(endpoints))}

    assert shares == {Fraction(1, endpoints)}


def test_shares_that_are_no_simple_fraction_stay() -> None:
    """Nothing is smoothed that was not close."""
    assert nominal(Fraction(123456789, 2**31)) == Fraction(123456789, 2**31)


def test_outcomes_of_several_paths_are_one_in_the_distribution() -> None:
    """Shares are added; the first path stays."""
    one, two = _walk(2)
    twice = distribution([one, one, two])

    assert [outcome.share for outcome in twice] == [one.share * 2, two.share]
    assert twice[0].path == one.path


def test_what_ways_have_in_common_is_printed_once() -> None:
    """The dispatch before they part, and the tables behind."""
    text = "\n".join(tree_lines(_walk(3)))

    assert text.count("shop/web:http cluster IP") == 1
    assert text.count("kubernetes postrouting rules") == 1
    assert text.count("FORWARD filter: as above") == 2
    assert text.count(" 33.3 %  ") == 3


def test_many_ways_are_counted() -> None:
    """Beyond the first eight, only their number and share are printed."""
    lines = list(tree_lines(_walk(10)))

    assert [line for line in lines if "more ways" in line] == ["   20 %  and 2 more ways (--output json has them all)"]


def test_lines_keep_their_comment() -> None:
    """A line loses chain and port match, never the comment, even one with quotes."""
    line = '-A X -d 10.0.0.1/32 -p tcp -m comment --comment "a \\"b\\" -j c" -m tcp --dport 80 -j Y'
    step = Step(hook="PREROUTING", table="nat", chain="X", position=1, depth=0, line=line, mark=0)

    assert short_line(step) == '-d 10.0.0.1/32 -p tcp --dport 80 -j Y  (a \\"b\\" -j c)'


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (Fraction(1), "100 %"),
        (Fraction(715827883, 2**31), "33.3 %"),
        (Fraction(1, 80000), "0.00125 %"),
        (Fraction(1, 2**31), "4.66e-08 %"),
        (1 - Fraction(1, 2**31), "99.999999953 %"),
        (Fraction(0), "0 %"),
    ],
)
def test_percentages_are_short_and_never_round_to_nothing(share: Fraction, text: str) -> None:
    """Something that can happen never reads 0 %."""
    assert percent(share) == text


def test_outcomes_are_named_by_comments() -> None:
    """The service port that a path is about; none where no rule of one was met."""
    assert {service_of(outcome) for outcome in _walk(2)} == {"shop/web:http"}
    packet = Packet(family=Family.IPV4, source="10.0.0.1", destination="10.96.0.99")
    assert [service_of(outcome) for outcome in walk(_rules(1), packet, Host())] == [""]


@pytest.mark.parametrize("endpoints", [0, 2])
def test_services_are_found_in_rules(endpoints: int) -> None:
    """By port name, by number, or the first one; with endpoints and without."""
    rules = _rules(endpoints)

    assert find_service(rules, "shop/web", "https") == ("10.96.0.10", "tcp", 443)
    assert find_service(rules, "shop/web", "443") == ("10.96.0.10", "tcp", 443)
    assert find_service(rules, "shop/web") == ("10.96.0.10", "tcp", 80)


def test_services_are_found_in_a_tree_of_rules() -> None:
    """A node with many Services has its rules in branches; their names are found all the same."""
    services = [service(f"web-{number}", namespace="shop", cluster_ip=f"10.96.1.{number}") for number in range(40)]
    config = Config(shape=ShapeConfig(dispatch=Dispatch.TREE))
    objects = (one for each in services for one in (each, endpoint_slice(each)))
    rules = with_base_chains(desired_for(*objects, config=config))
    dispatch = rules.chain("nat", "KUBE-SERVICES")

    assert dispatch is not None
    assert len(dispatch.rules) < len(services)
    assert find_service(rules, "shop/web-33") == ("10.96.1.33", "tcp", 80)


def test_unknown_services_and_ports_are_explained() -> None:
    """What the rules do know of the service is part of the message."""
    with pytest.raises(RulesetError, match=r"no rule names that service"):
        find_service(_rules(1), "shop/we")
    with pytest.raises(RulesetError, match=r"its ports are http \(80\), https \(443\)"):
        find_service(_rules(1), "shop/web", "ftp")
