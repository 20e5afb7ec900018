"""Whatever the objects were and become: the plan ends in the desired rules, and no traffic is lost on the way."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.config.model import Config, IptablesConfig
from kproxy_ipt.errors import RestoreError
from kproxy_ipt.objects.model import Service, SliceEndpoint
from kproxy_ipt.plan.cleanup import plan_cleanup
from kproxy_ipt.plan.plan import Plan, plan_sync
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.ruleset.render import render_chain
from kproxy_ipt.testing.desired import ApiObject, desired_for
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint
from kproxy_ipt.testing.reachability import gaps, reachability

CONFIGS = st.builds(
    Config,
    cluster_cidrs=st.sampled_from([(), ("10.0.0.0/8",)]),
    iptables=st.builds(IptablesConfig, masquerade_all=st.booleans(), masquerade_bit=st.sampled_from([14, 20])),
)
POLICIES = st.sampled_from(["Cluster", "Local"])
CONDITIONS = [(True, True, False), (False, True, True), (False, False, False)]


@st.composite
def _endpoints(draw: st.DrawFn) -> list[SliceEndpoint]:
    numbers = draw(st.sets(st.integers(1, 4), max_size=4))
    entries = []
    for number in sorted(numbers):
        ready, serving, terminating = draw(st.sampled_from(CONDITIONS))
        place = draw(st.sampled_from(["node1", "node2"]))
        entries.append(
            slice_endpoint(f"10.0.0.{number}", node_name=place, ready=ready, serving=serving, terminating=terminating)
        )
    return entries


@st.composite
def _services(draw: st.DrawFn, name: str, own_ip: str) -> Service:
    ports = draw(st.sets(st.sampled_from([("web", 80, "TCP"), ("dns", 53, "UDP"), ("tls", 443, "TCP")]), min_size=1))
    return service(
        name,
        cluster_ip=draw(st.sampled_from([own_ip, own_ip, "10.96.0.99"])),
        service_type=draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"])),
        ports=[
            service_port(port, name=text, protocol=protocol, node_port=draw(st.sampled_from([0, 30001, 30002])))
            for text, port, protocol in sorted(ports)
        ],
        external_ips=sorted(draw(st.sets(st.sampled_from(["192.0.2.1", "192.0.2.2"])))),
        ingress=sorted(draw(st.sets(st.sampled_from(["198.51.100.1", "198.51.100.2"])))),
        source_ranges=draw(st.sampled_from([(), ("203.0.113.0/24",), ("127.0.0.0/8", "10.0.0.0/8")])),
        affinity_timeout_s=draw(st.sampled_from([None, 60])),
        internal_policy=draw(POLICIES),
        external_policy=draw(POLICIES),
        health_check_node_port=32000,
    )


class Situation(NamedTuple):
    """Objects and configuration of one moment; small enough to be printed where a property fails."""

    objects: list[ApiObject]
    config: Config

    @property
    def desired(self) -> Desired:
        """The rules for it."""
        return desired_for(*self.objects, config=self.config)


@st.composite
def _situations(draw: st.DrawFn) -> Situation:
    objects: list[ApiObject] = []
    for number, name in enumerate(["a", "b", "c"], start=1):
        if draw(st.booleans()):
            of = draw(_services(name, f"10.96.0.{number}"))
            objects += [of, endpoint_slice(of, draw(_endpoints()), address_type="IPv4")]
    return Situation(objects, draw(CONFIGS))


STAGES = st.sampled_from([None, 1, 8, 40, 2500])
"""Lines of one transaction, or None for one transaction a table."""


def _plan(kernel: FakeKernel, desired: Desired, stage: int | None) -> Plan:
    return plan_sync(desired, kernel.saved(), staged=stage is not None, max_lines=stage or 1)


def _chains(kernel: FakeKernel) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """The rules of each chain, without the mark that only nf_tables gets."""
    return {
        (table, name): chain.lines
        for table, chains in kernel.saved().tables.items()
        for name, chain in chains.items()
        if name != "KUBE-PROXY-CANARY"
    }


@settings(max_examples=150, deadline=None)
@given(_situations(), _situations(), STAGES)
def test_history_leaves_no_trace_and_no_gap(first: Situation, second: Situation, stage: int | None) -> None:
    """Going from A to B ends where B alone ends, chain by chain, and traffic is treated well at every moment."""
    kernel, fresh = FakeKernel(), FakeKernel()
    kernel.apply(_plan(kernel, first.desired, stage))
    states = [reachability(kernel.saved())]
    kernel.on_commit = lambda changed: states.append(reachability(changed.saved()))
    kernel.apply(_plan(kernel, second.desired, stage))
    fresh.apply(_plan(fresh, second.desired, None))

    assert gaps(states) == ()
    assert _chains(kernel) == _chains(fresh)
    assert _plan(kernel, second.desired, stage) == Plan()


@settings(max_examples=100, deadline=None)
@given(_situations(), STAGES)
def test_first_sync_writes_the_desired_rules(situation: Situation, stage: int | None) -> None:
    """Every chain is there with its rules, and no other chain of a service."""
    kernel, desired = FakeKernel(), situation.desired
    kernel.apply(_plan(kernel, desired, stage))
    chains = _chains(kernel)

    for table in desired.ruleset.tables.values():
        for chain in table.chains.values():
            assert chains[table.name, chain.name] == render_chain(chain)
    built_in_or_shared = {name for _, name in chains if not name.startswith("KUBE-")} | {"KUBE-FIREWALL"}
    assert {name for _, name in chains} - built_in_or_shared <= {
        name for table in desired.ruleset.tables.values() for name in table.chains
    }


@settings(max_examples=150, deadline=None)
@given(_situations(), _situations(), STAGES, st.integers(1, 12))
def test_failure_at_any_transaction_is_made_good_by_the_next_plan(
    first: Situation, second: Situation, stage: int | None, failing: int
) -> None:
    """What was refused midway is finished from where it stopped."""
    kernel, fresh = FakeKernel(), FakeKernel()
    kernel.apply(_plan(kernel, first.desired, stage))
    plan = _plan(kernel, second.desired, stage)
    kernel.fail_at(failing)
    if failing <= len(plan.transactions):
        with pytest.raises(RestoreError, match="refused as told"):
            kernel.apply(plan)
    kernel.fail_at(0)
    kernel.apply(_plan(kernel, second.desired, stage))
    fresh.apply(_plan(fresh, second.desired, None))

    assert _chains(kernel) == _chains(fresh)


@settings(max_examples=60, deadline=None)
@given(_situations(), _situations(), STAGES)
def test_clean_up_after_any_history_leaves_nothing(first: Situation, second: Situation, stage: int | None) -> None:
    """Both on nf_tables, where the tables go as well, and on legacy, where empty built-in chains stay."""
    kernel = FakeKernel()
    for situation in (first, second):
        kernel.apply(_plan(kernel, situation.desired, stage))
    kernel.apply(plan_cleanup(kernel.saved(), staged=stage is not None))

    assert not [lines for lines in _chains(kernel).values() if lines]
    assert not [name for _, name in _chains(kernel) if name.startswith("KUBE-")]
    assert stage is None or kernel.save() == ""
