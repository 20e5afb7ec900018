"""The kernel in memory and the real one take the same plans in the same way."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import RestoreError
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.iptables import Iptables
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.programs import Backend, installed_programs
from kproxy_ipt.plan.cleanup import plan_cleanup
from kproxy_ipt.plan.plan import Plan, plan_sync
from kproxy_ipt.ruleset.canonical import canonical
from kproxy_ipt.ruleset.render import render_input
from kproxy_ipt.ruleset.scan import scan_save
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.testing.desired import ApiObject, desired_for
from kproxy_ipt.testing.fake_kernel import FakeKernel
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.objects import endpoint_slice, service, service_port

pytestmark = pytest.mark.kernel

WITHOUT_NFACCT = MachineFacts(nfacct_counters=frozenset())


def _objects(*endpoints: str) -> list[ApiObject]:
    balanced = service(
        "balanced",
        cluster_ips=("10.96.0.11", "fd00::11"),
        service_type="LoadBalancer",
        ports=(service_port(80, node_port=30080),),
        ingress=("192.0.2.1", "2001:db8::1"),
        source_ranges=("203.0.113.0/24", "2001:db8::/32"),
        external_policy="Local",
        affinity_timeout_s=60,
    )
    slices = [endpoint_slice(balanced, [text for text in endpoints if (":" in text) is v6]) for v6 in (False, True)]
    return [service("refused"), balanced, *(found for found in slices if found.endpoints)]


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("backend", list(Backend))
def test_plans_end_in_the_same_rules_in_both_kernels(backend: Backend, family: Family) -> None:
    """First sync, a change, the loss of all endpoints and the clean-up; the real save leaves nothing to do."""
    fake, staged = FakeKernel(), backend is Backend.NFT
    with temporary_namespace("fake") as name, inside(name):
        runner = SubprocessRunner()
        real = Iptables(runner, installed_programs(runner, (family,))[family].programs[backend], 1)
        for endpoints in (("10.0.0.1", "10.0.0.2", "fd00:1::1"), ("10.0.0.2", "10.0.0.3", "fd00:1::2"), ()):
            desired = desired_for(*_objects(*endpoints), family=family, machine=WITHOUT_NFACCT)
            plan = plan_sync(desired, fake.saved(), staged=staged, max_lines=10)
            fake.apply(plan)
            real.restore(render_input(plan.restore_input))
            saved = real.start_save().text()

            assert canonical(saved) == canonical(fake.save())
            assert plan_sync(desired, scan_save(saved), staged=staged) == Plan()
        real.restore(render_input(plan_cleanup(scan_save(saved), staged=staged).restore_input))
        assert canonical(real.start_save().text()) == ""


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize(
    "lines",
    [
        ":A - [0:0]\n-A A -j MISSING",
        "-A MISSING -j RETURN",
        ":B - [0:0]\n-A PREROUTING -j B\nCOMMIT\n*nat\n:B - [0:0]\n-X B",
        ":C - [0:0]\n-D C -j RETURN",
    ],
)
def test_both_kernels_refuse_the_same_inputs(backend: Backend, lines: str) -> None:
    """A jump to nowhere, a rule of no chain, a chain in use, a rule that is not there."""
    text = f"*nat\n{lines}\nCOMMIT\n"
    with pytest.raises(RestoreError):
        FakeKernel().restore(text)
    with temporary_namespace("fake") as name, inside(name):
        runner = SubprocessRunner()
        programs = installed_programs(runner, (Family.IPV4,))[Family.IPV4].programs[backend]
        with pytest.raises(RestoreError):
            Iptables(runner, programs, 1).restore(text)
