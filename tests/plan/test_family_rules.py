"""Rules of one family, Service by Service: what a change costs, and what is remembered of a refusal."""

from collections.abc import Mapping

import msgspec
import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config, Dispatch
from kproxy_ipt.errors import RestoreError
from kproxy_ipt.objects.model import EndpointSlice
from kproxy_ipt.plan.family_rules import FamilyRules
from kproxy_ipt.plan.plan import Plan
from kproxy_ipt.rules import shared_chains
from kproxy_ipt.rules.names import KUBE_SERVICES
from kproxy_ipt.rules.options import rule_options
from kproxy_ipt.ruleset.edits import DeleteChain, EnsureChain, WriteChain
from kproxy_ipt.state.model import MachineFacts, NodeFacts, ServiceState
from kproxy_ipt.testing.desired import ApiObject, snapshot_of
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port, slice_endpoint

OPTIONS = rule_options(Config(), NodeFacts(name="node1"), MachineFacts(), Family.IPV4, endpoint_count=0)
WEB, API, BIG = service("web"), service("api", cluster_ip="10.96.0.20"), service("big", cluster_ip="10.96.0.30")
Changes = Mapping[tuple[str, str], tuple[ServiceState, ...]]


def _states(*objects: ApiObject) -> dict[tuple[str, str], tuple[ServiceState, ...]]:
    found: dict[tuple[str, str], tuple[ServiceState, ...]] = {}
    for state in snapshot_of(*objects).services.values():
        name = (state.service_port.namespace, state.service_port.name)
        found[name] = (*found.get(name, ()), state)
    return found


def _many(number: int) -> EndpointSlice:
    return endpoint_slice(BIG, [f"10.1.{one // 250}.{one % 250 + 1}" for one in range(number)])


class Kept:
    """Rules and the kernel that has them."""

    def __init__(self, *objects: ApiObject) -> None:
        self.kernel = FakeKernel()
        self.rules = FamilyRules()
        self.rules.set_options(OPTIONS)
        self.write(_states(*objects))

    def write(self, changes: Changes) -> Plan:
        """One sync."""
        self.rules.update(changes)
        plan = (
            self.rules.plan_full(self.kernel.saved(), staged=True)
            if self.rules.needs_full
            else self.rules.plan_partial(staged=True)
        )
        self.kernel.apply(plan)
        self.rules.commit()
        return plan

    def is_in_step(self) -> bool:
        """Whether a comparison finds nothing to do."""
        return not self.rules.plan_full(self.kernel.saved(), staged=True).transactions


@pytest.fixture
def kept() -> Kept:
    """Two Services with an endpoint each."""
    return Kept(WEB, API, endpoint_slice(WEB), endpoint_slice(API, ["10.244.1.3"]))


def _chains(plan: Plan) -> set[str]:
    edits = [edit for transaction in plan.transactions for edit in transaction.edits]
    return {edit.name for edit in edits if isinstance(edit, WriteChain | DeleteChain)}


def test_changed_endpoint_touches_chains_of_its_service_alone(kept: Kept) -> None:
    """Neither dispatch nor any other Service is written."""
    plan = kept.write(_states(WEB, endpoint_slice(WEB, ["10.244.1.9"])))

    assert len(_chains(plan)) == 3
    assert {name[:9] for name in _chains(plan)} == {"KUBE-SVC-", "KUBE-SEP-"}
    assert {transaction.table for transaction in plan.transactions} == {"nat"}


def test_new_service_writes_dispatch_too(kept: Kept) -> None:
    """Its line belongs into the chain that all share, in the order of names."""
    plan = kept.write(_states(BIG, endpoint_slice(BIG, ["10.1.0.1"])))
    lines = kept.kernel.saved().tables["nat"][KUBE_SERVICES].lines

    assert KUBE_SERVICES in _chains(plan)
    assert [line.split()[3] for line in lines[:3]] == ["10.96.0.20/32", "10.96.0.30/32", "10.96.0.10/32"]


def test_nothing_changed_means_an_empty_plan(kept: Kept) -> None:
    """A Service that means the same costs nothing."""
    assert kept.write(_states(WEB, endpoint_slice(WEB))).transactions == ()


def test_partial_plan_needs_to_know_what_the_kernel_has() -> None:
    """Before the first full plan, and after a failure, it is an error of the caller."""
    rules = FamilyRules()
    rules.set_options(OPTIONS)

    with pytest.raises(RuntimeError, match="not known"):
        rules.plan_partial(staged=True)


def test_plan_is_committed_once(kept: Kept) -> None:
    """Without another one there is nothing that the kernel could have taken."""
    with pytest.raises(RuntimeError, match="nothing is planned"):
        kept.rules.commit()
    with pytest.raises(RuntimeError, match="nothing is planned"):
        FamilyRules().commit()


def test_rules_without_options_are_an_error_of_the_caller() -> None:
    """Nothing is guessed."""
    with pytest.raises(RuntimeError, match="options are not set"):
        FamilyRules().update({})


def test_same_options_are_no_news_and_others_need_everything(kept: Kept) -> None:
    """An option that changes is a full plan."""
    news = [kept.rules.set_options(OPTIONS), kept.rules.needs_full]
    news += [kept.rules.set_options(msgspec.structs.replace(OPTIONS, masquerade_all=True)), kept.rules.needs_full]

    assert news == [False, False, True, True]


def test_large_cluster_has_no_comments_on_endpoints_and_gets_them_back(kept: Kept) -> None:
    """The bound of 1,000 endpoints is crossed in both directions, and every rule follows, without a full plan."""
    found = []
    for number in (1000, 10):
        kept.rules.update(_states(BIG, _many(number)))
        assert not kept.rules.needs_full
        kept.write({})
        lines = [line for chain in kept.kernel.saved().tables["nat"].values() for line in chain.lines]
        commented = sum('"default/web"' in line for line in lines)
        found.append((kept.rules.endpoint_count, bool(commented), kept.is_in_step()))

    assert found == [(1002, False, True), (12, True, True)]


def test_service_that_goes_while_the_bound_is_crossed_comes_back(kept: Kept) -> None:
    """Its rules are forgotten with it, though every other rule is made anew at the same moment."""
    kept.write(_states(BIG, _many(1100)))
    kept.write({("default", "api"): (), **_states(API)})
    empty = _states(API)
    kept.write({("default", "api"): (), **_states(BIG, _many(10))})
    assert "10.96.0.20/32" not in kept.kernel.save()
    kept.write(empty)

    assert "10.96.0.20/32" in kept.kernel.save()
    assert kept.is_in_step()


def test_refused_change_stays_wanted(kept: Kept) -> None:
    """What the kernel refused is in the next plan, together with what changed since."""
    kept.rules.update(_states(WEB, endpoint_slice(WEB, ["10.244.1.9"])))
    kept.kernel.fail_at(1)
    with pytest.raises(RestoreError):
        kept.kernel.apply(kept.rules.plan_partial(staged=True))
    kept.rules.require_full()
    assert kept.rules.needs_full is True
    kept.write(_states(API, endpoint_slice(API, ["10.244.1.8"])))

    assert "10.244.1.9:80" in kept.kernel.save()
    assert "10.244.1.8:80" in kept.kernel.save()


def test_counts_follow_partial_syncs(kept: Kept) -> None:
    """Chains and rules are counted as if everything had been written at once."""
    counts = [(kept.rules.counts(), _counted(kept.kernel))]
    kept.write(_states(BIG, _many(5)))
    counts.append((kept.rules.counts(), _counted(kept.kernel)))
    kept.write({("default", "web"): (), **_states(API)})
    counts.append((kept.rules.counts(), _counted(kept.kernel)))

    assert all(told == counted for told, counted in counts)
    assert counts[0] != counts[1] != counts[2]
    assert Kept(API, BIG, _many(5)).rules.counts() == kept.rules.counts()


def _counted(kernel: FakeKernel) -> dict[str, tuple[int, int]]:
    """Chains of ours and their rules, without the mark of the table and the chain that is shared."""
    found = {}
    for table, chains in kernel.saved().tables.items():
        ours = [chain for chain in chains.values() if chain.policy == "-" and chain.name != "KUBE-PROXY-CANARY"]
        found[table] = (len(ours), sum(len(chain.lines) for chain in ours))
    return found


def test_service_set_aside_has_no_rules_until_it_changes(kept: Kept) -> None:
    """The others keep theirs; the same meaning does not bring it back, another one does."""
    name = ("default", "web")
    kept.rules.set_aside(name)
    kept.write({})
    kept.write(_states(WEB, endpoint_slice(WEB)))
    aside = ("10.96.0.10" in kept.kernel.save(), "10.96.0.20" in kept.kernel.save(), len(kept.rules.aside))
    kept.write(_states(WEB, endpoint_slice(WEB, ["10.244.1.9"])))

    assert aside == (False, True, 1)
    assert ("10.244.1.9" in kept.kernel.save(), len(kept.rules.aside)) == (True, 0)


def test_service_set_aside_can_be_tried_again(kept: Kept) -> None:
    """The kernel may have got what it lacked."""
    kept.rules.set_aside(("default", "web"))
    kept.write({})
    kept.rules.release([("default", "web")])
    kept.write({})

    assert ("10.96.0.10" in kept.kernel.save(), len(kept.rules.aside), kept.is_in_step()) == (True, 0, True)


def test_chains_and_lines_know_their_service(kept: Kept) -> None:
    """An own chain and a line of a shared chain lead to the Service; fixed rules lead to none."""
    tables = kept.kernel.saved().tables["nat"]
    line = next(line for line in tables[KUBE_SERVICES].lines if "10.96.0.20" in line)
    chain = next(name for name in tables if name.startswith("KUBE-SEP-"))
    mark = tables["KUBE-MARK-MASQ"].lines[0]

    assert kept.rules.service_of(KUBE_SERVICES, line) == ("default", "api")
    assert kept.rules.service_of(chain, "") is not None
    assert kept.rules.service_of("KUBE-MARK-MASQ", mark) is None
    assert kept.rules.owner_of(chain).startswith("default/")
    assert kept.rules.owner_of("KUBE-MARK-MASQ") == ""


def test_kernel_that_lost_rules_gets_them_all_back_after_a_full_plan(kept: Kept) -> None:
    """When it is said that nothing is known of the kernel, it is read and compared; a partial plan would not see."""
    kept.kernel.restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
    assert kept.write({}).transactions == ()

    kept.rules.require_full()
    with pytest.raises(RuntimeError, match="not known"):
        kept.rules.plan_partial(staged=True)
    assert _chains(kept.write({})) == {KUBE_SERVICES}
    assert kept.rules.needs_full is False


def test_harmless_plan_changes_nothing(kept: Kept) -> None:
    """It is a real write, of one chain that is there already, as it is."""
    plan, before = kept.rules.harmless_plan(), kept.kernel.save()
    kept.kernel.apply(plan)

    assert [transaction.table for transaction in plan.transactions] == ["nat"]
    assert plan.rules_written == 1
    assert kept.kernel.save() == before


def test_held_service_keeps_what_it_has_until_it_is_released(kept: Kept) -> None:
    """It is not set aside: the other Service's change goes on, its own waits."""
    kept.rules.update(_states(WEB, endpoint_slice(WEB, ["10.244.1.2", "10.244.1.9"])))
    kept.rules.hold([("default", "web")], kept.kernel.saved())
    before = kept.kernel.save()
    kept.write(_states(API, endpoint_slice(API, ["10.244.1.8"])))
    held = ("10.96.0.10" in before, "10.244.1.9" in kept.kernel.save(), "10.244.1.8" in kept.kernel.save())
    kept.rules.release([("default", "web"), ("default", "api"), ("default", "unknown")])
    plan = kept.write({})

    assert held == (True, False, True)
    assert len(kept.rules.aside) == 0
    assert "10.244.1.9" in kept.kernel.save()
    assert {name[:9] for name in _chains(plan)} == {"KUBE-SVC-", "KUBE-SEP-"}
    assert kept.is_in_step()


def test_service_set_aside_tells_whether_its_earlier_rules_stay(kept: Kept) -> None:
    """They do as far as the kernel has them and they still serve; a new Service has none."""
    kept.rules.update({**_states(WEB, endpoint_slice(WEB, ["10.244.1.2", "10.244.1.9"])), **_states(BIG, _many(1))})
    for name in ("web", "big"):
        kept.rules.set_aside(("default", name), kept.kernel.saved())

    assert dict(kept.rules.aside) == {("default", "web"): True, ("default", "big"): False}
    assert len(kept.rules.aside) == 2
    kept.write({})
    assert ("10.96.0.10/32" in kept.kernel.save(), "10.96.0.30/32" in kept.kernel.save()) == (True, False)


def test_service_without_rules_can_be_held(kept: Kept) -> None:
    """There is nothing to keep, and nothing is written."""
    kept.rules.hold([("default", "big")], kept.kernel.saved())

    assert kept.write({}).transactions == ()
    assert kept.is_in_step()


def test_service_that_is_held_already_can_be_set_aside(kept: Kept) -> None:
    """What it has stays what was found when it was held."""
    kept.rules.update(_states(WEB, endpoint_slice(WEB, ["10.244.1.2", "10.244.1.9"])))
    kept.rules.hold([("default", "web")], kept.kernel.saved())
    kept.rules.set_aside(("default", "web"))

    assert dict(kept.rules.aside) == {("default", "web"): True}
    assert kept.write({}).transactions == ()


def test_service_set_aside_changes_its_mind_and_is_forgotten_when_it_goes(kept: Kept) -> None:
    """Gone Services are neither set aside nor kept."""
    kept.rules.set_aside(("default", "web"), kept.kernel.saved())
    kept.write({("default", "web"): ()})

    assert dict(kept.rules.aside) == {}
    assert "10.96.0.10/32" not in kept.kernel.save()
    assert kept.is_in_step()


def test_new_options_bring_back_what_was_set_aside(kept: Kept) -> None:
    """All rules are made anew, so the kernel is asked anew."""
    kept.rules.set_aside(("default", "web"))
    kept.write({})
    kept.rules.set_options(msgspec.structs.replace(OPTIONS, masquerade_all=True))
    kept.write({})

    assert dict(kept.rules.aside) == {}
    assert "10.96.0.10/32" in kept.kernel.save()


def test_tree_that_the_kernel_has_stays_one_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the bounds a chain keeps its form: whoever begins learns it from the kernel, once."""
    monkeypatch.setattr(shared_chains, "TREE_FROM", 40)
    monkeypatch.setattr(shared_chains, "ROW_BELOW", 20)
    services = [service(f"s{number}", cluster_ip=f"10.{96 + number % 4}.0.{number + 1}") for number in range(40)]
    kept = Kept(*services)
    kept.write(dict.fromkeys(list(_states(*services))[30:], ()))
    states = dict(list(_states(*services).items())[:30])
    tree, row = Kept(), Kept()
    for one, kernel in ((tree, kept.kernel), (row, FakeKernel())):
        one.rules, one.kernel = FamilyRules(), kernel
        one.rules.set_options(OPTIONS)
        one.rules.update(states)
    plan = tree.rules.plan_full(tree.kernel.saved(), staged=True)
    row.write({})

    assert plan.transactions == ()
    assert "services at" in tree.kernel.save()
    assert "services at" not in row.kernel.save()
    assert row.rules.plan_full(tree.kernel.saved(), staged=True).transactions


@pytest.mark.parametrize("dispatch", [Dispatch.LINEAR, Dispatch.TREE])
def test_partial_plans_of_any_form_end_in_step(dispatch: Dispatch) -> None:
    """A tree stays one: of 64 Services one that changes its address writes a part and the way to it."""
    services = [service(f"s{number}", cluster_ip=f"10.{96 + number % 4}.0.{number + 1}") for number in range(64)]
    kept = Kept()
    kept.rules.set_options(msgspec.structs.replace(OPTIONS, dispatch=dispatch))
    kept.write(_states(*services))
    moved = kept.write(_states(service("s7", cluster_ip="10.99.0.77")))

    assert ("services at" in kept.kernel.save()) is (dispatch is Dispatch.TREE)
    assert moved.rules_written < 40 or dispatch is Dispatch.LINEAR
    assert kept.rules.counts() == _counted(kept.kernel)
    assert kept.is_in_step()


def test_plans_are_staged_as_they_are_told(kept: Kept) -> None:
    """Full ones mark new tables, and partial ones are cut, on nf_tables only."""
    full = [kept.rules.plan_full(FakeKernel().saved(), staged=staged) for staged in (True, False)]
    assert ["KUBE-PROXY-CANARY" in _ensured(plan) for plan in full] == [True, False]

    kept.rules.update(_states(BIG, _many(9)))
    bounds: list[tuple[bool, int]] = [(True, 1), (True, 1000), (False, 1)]
    cut = [len(kept.rules.plan_partial(staged=staged, max_lines=most).transactions) for staged, most in bounds]
    assert cut[0] > 9
    assert cut[1:] == [1, 1]


def _ensured(plan: Plan) -> set[str]:
    edits = [edit for transaction in plan.transactions for edit in transaction.edits]
    return {edit.name for edit in edits if isinstance(edit, EnsureChain)}


def test_service_that_was_never_there_can_go(kept: Kept) -> None:
    """A watch may tell of it."""
    assert kept.write({("default", "unknown"): ()}).transactions == ()


def test_chains_of_one_service_change_together_in_partial_plans() -> None:
    """However small the stages are."""
    web = service("web", service_type="NodePort", internal_policy="Local", ports=[service_port(80, node_port=30080)])
    one, two = (slice_endpoint(f"10.0.0.{number}", node_name="node1") for number in (1, 2))
    kept = Kept(web, endpoint_slice(web, [one]))
    kept.rules.update(_states(web, endpoint_slice(web, [one, two])))
    plan = kept.rules.plan_partial(staged=True, max_lines=1)

    written = [[edit.name[:9] for edit in one.edits if isinstance(edit, WriteChain)] for one in plan.transactions]
    assert [sorted(names) for names in written] == [["KUBE-SEP-"], ["KUBE-SVC-", "KUBE-SVL-"]]
