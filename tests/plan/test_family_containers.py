"""What rules of a family remember: nothing before the first options, and nothing of a Service that is gone."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.ruleset.scan import SavedTables
from kproxy_ipt.state.model import MachineFacts, NodeFacts, ServiceState
from kproxy_ipt.testing.desired import ApiObject, snapshot_of
from kproxy_ipt.testing.objects import endpoint_slice, service

OPTIONS = rule_options(Config(), NodeFacts(name="node1"), MachineFacts(), Family.IPV4, endpoint_count=0)
NO_TABLES = SavedTables({})
WEB, API = service("web"), service("api", cluster_ip="10.96.0.20")


def _states(*objects: ApiObject) -> dict[tuple[str, str], tuple[ServiceState, ...]]:
    """Of Services with one port each."""
    states = snapshot_of(*objects).services.values()
    return {(one.service_port.namespace, one.service_port.name): (one,) for one in states}


def _sizes(rules: FamilyRules) -> dict[str, int]:
    parts = (rules, rules.dispatch)
    return {
        f"{type(part).__name__}.{name}": len(found)
        for part in parts
        for name, found in vars(part).items()
        if isinstance(found, dict | set | list)
    }


def test_service_that_is_gone_leaves_no_key_behind() -> None:
    """Whether it had rules, was refused, or was set aside; and a Service that was never there leaves none."""
    rules = FamilyRules()
    rules.set_options(OPTIONS)
    rules.update(_states(WEB, endpoint_slice(WEB)))
    rules.plan_full(NO_TABLES, staged=True)
    rules.commit()
    before = _sizes(rules)

    for changes in (_states(API), _states(API, endpoint_slice(API)), {("default", "api"): (), ("default", "none"): ()}):
        rules.update(changes)
        rules.plan_partial(staged=True)
        rules.commit()
    assert _sizes(rules) == before

    rules.update(_states(API))
    rules.set_aside(("default", "api"))
    rules.update({("default", "api"): ()})
    rules.plan_partial(staged=True)
    rules.commit()
    assert _sizes(rules) == before


def test_nothing_is_known_before_the_first_options() -> None:
    """The kernel has to be read, it has nothing of us, and what depends on options is an error of the caller."""
    rules = FamilyRules()

    assert rules.needs_full is True
    assert rules.counts() == {"filter": (0, 0), "nat": (0, 0)}
    assert (rules.endpoint_count, dict(rules.aside)) == (0, {})
    for ask in (lambda: rules.options, lambda: rules.dispatch, lambda: rules.fixed):
        with pytest.raises(RuntimeError, match="options are not set"):
            ask()
    with pytest.raises(RuntimeError, match="nothing is planned"):
        rules.commit()
    with pytest.raises(RuntimeError, match="what the kernel has is not known"):
        rules.plan_partial(staged=True)
