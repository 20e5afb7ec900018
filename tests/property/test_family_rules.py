"""Step by step or all at once: the rules are the same, and a refused step loses nothing."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Balance, Config, Dispatch, ShapeConfig
from kproxy_ipt.errors import RestoreError
from kproxy_ipt.objects.events import Kind, Listed
from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.plan import in_place
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.plan import Plan, plan_sync
from kproxy_ipt.rules import dispatch_tree, shape, shared_chains
from kproxy_ipt.rules.groups import GROUP_CAPACITY
from kproxy_ipt.rules.options import RuleOptions, rule_options
from kproxy_ipt.state.model import MachineFacts, NodeFacts
from kproxy_ipt.state.tracker import ObjectStore, StateTracker
from kproxy_ipt.testing.desired import ApiObject, desired_for
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint

NODE = "node1"
CONFIGS = tuple(
    Config(shape=ShapeConfig(dispatch=dispatch, balance=balance)) for dispatch in Dispatch for balance in Balance
)
CONFIG = st.sampled_from(CONFIGS)


@pytest.fixture(scope="module", autouse=True)
def small_bounds() -> Iterator[None]:
    """So that three Services are enough for trees, for their end, for groups, and for chains that are edited."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch_tree, "LEAF_RULES", 1)
        patch.setattr(shared_chains, "TREE_FROM", 3)
        patch.setattr(shared_chains, "ROW_BELOW", 2)
        patch.setattr(shape, "GROUPED_ABOVE_ENDPOINTS", 2)
        patch.setattr(in_place, "_LARGE", 2)
        patch.setattr(in_place, "_SMALL_PART", 1)
        yield


def _options(config: Config) -> RuleOptions:
    options = rule_options(config, NodeFacts(name=NODE), MachineFacts(), Family.IPV4, endpoint_count=0)
    return msgspec.structs.replace(options, group_capacity=1)


@st.composite
def _objects(draw: st.DrawFn) -> list[ApiObject]:
    found: list[ApiObject] = []
    for number, name in enumerate(["a", "a-b", "b"], start=1):
        if not draw(st.booleans()):
            continue
        port = service_port(80, name="http", node_port=draw(st.sampled_from([0, 30000 + number])))
        one = service(
            name,
            cluster_ip=f"10.96.0.{number}",
            ports=[port],
            service_type="LoadBalancer",
            external_policy=draw(st.sampled_from(["Cluster", "Local"])),
            ingress=draw(st.sampled_from([(), ("198.51.100.1",)])),
            affinity_timeout_s=draw(st.sampled_from([None, 60])),
        )
        numbers = sorted(draw(st.sets(st.integers(1, 3))))
        nodes = [draw(st.sampled_from([NODE, "node2"])) for _ in numbers]
        entries = [slice_endpoint(f"10.0.0.{one}", node_name=node) for one, node in zip(numbers, nodes, strict=True)]
        found += [one, endpoint_slice(one, entries, address_type="IPv4")]
    return found


class Follower:
    """A kernel that is kept in step with lists of objects, partially wherever that is possible."""

    def __init__(self, config: Config) -> None:
        self.kernel = FakeKernel()
        self.rules = FamilyRules()
        self.rules.set_options(_options(config))
        self.store = ObjectStore()
        self.tracker = StateTracker(Family.IPV4, NODE)

    def follow(self, objects: Sequence[ApiObject], *, staged: bool, failing: int = 0) -> Plan | None:
        """One sync; None if the kernel refused it."""
        for kind, model in ((Kind.SERVICES, Service), (Kind.ENDPOINT_SLICES, EndpointSlice)):
            listed = Listed(kind, tuple(one for one in objects if isinstance(one, model)))
            self.tracker.refresh(self.store, self.store.apply(listed), now_s=0.0)
        pending = self.tracker.pending()
        self.rules.update(pending.changes)
        is_full = self.rules.needs_full
        plan = (
            self.rules.plan_full(self.kernel.saved(), staged=staged)
            if is_full
            else self.rules.plan_partial(staged=staged)
        )
        self.kernel.fail_at(failing)
        try:
            self.kernel.apply(plan)
        except RestoreError:
            self.rules.require_full()
            return None
        finally:
            self.kernel.fail_at(0)
        self.rules.commit()
        self.tracker.commit(pending)
        return plan


def _fresh(objects: Sequence[ApiObject], config: Config, *, staged: bool, like: FamilyRules) -> FakeKernel:
    """A kernel that has all at once; between the bounds its trees are those of *like*."""
    follower = Follower(config)
    follower.rules.dispatch.learn(like.dispatch.branched)
    follower.follow(objects, staged=staged)
    return follower.kernel


@given(st.lists(_objects(), min_size=1, max_size=5), CONFIG, st.booleans())
@settings(max_examples=250, deadline=None)
def test_partial_syncs_end_in_the_chains_of_a_full_sync(
    moments: list[list[ApiObject]],
    config: Config,
    staged: bool,  # noqa: FBT001
) -> None:
    """Whatever the way, the kernel ends as if the last objects had been there from the start."""
    follower = Follower(config)
    for objects in moments:
        follower.follow(objects, staged=staged)

    fresh = _fresh(moments[-1], config, staged=staged, like=follower.rules)
    assert fresh.saved() == follower.kernel.saved()
    assert follower.rules.plan_full(follower.kernel.saved(), staged=staged).transactions == ()


@given(st.lists(_objects(), min_size=2, max_size=4), CONFIG, st.integers(1, 4), st.booleans())
@settings(max_examples=200, deadline=None)
def test_refused_sync_is_made_up_for(
    moments: list[list[ApiObject]],
    config: Config,
    failing: int,
    staged: bool,  # noqa: FBT001
) -> None:
    """A transaction that the kernel refused costs nothing once the next sync is taken."""
    follower = Follower(config)
    for objects in moments:
        follower.follow(objects, staged=staged, failing=failing)
    follower.follow(moments[-1], staged=staged)

    fresh = _fresh(moments[-1], config, staged=staged, like=follower.rules)
    assert fresh.saved() == follower.kernel.saved()


@given(_objects(), st.sampled_from([one for one in CONFIGS if one.shape.balance is not Balance.GROUPED]))
@settings(max_examples=60, deadline=None)
def test_wanted_rules_are_those_built_at_once(objects: list[ApiObject], config: Config) -> None:
    """The incremental builder and the one-shot builder agree chain by chain; groups are as large as usual here."""
    follower = Follower(config)
    follower.rules.set_options(msgspec.structs.replace(_options(config), group_capacity=GROUP_CAPACITY))
    follower.follow(objects, staged=True)
    kernel = FakeKernel()
    kernel.apply(plan_sync(desired_for(*objects, node_name=NODE, config=config), kernel.saved(), staged=True))

    assert kernel.saved() == follower.kernel.saved()
