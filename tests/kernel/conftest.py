"""
What the tests with real packets share: a lab for each backend, and a sync of its node.

The lab of a module is used by all its tests: every sync replaces all the Services of the one before. Where a test needs
the node to be untouched, or changes more of it than rules, it takes `fresh` and says `into=fresh`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import get_args

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.daemon.report import RunReport
from kproxy_ipt.daemon.sync import sync_once
from kproxy_ipt.objects.model import EndpointSlice, Node, Objects, Service
from kproxy_ipt.testing.lab import NODE_NAME, Lab
from kproxy_ipt.testing.lab_objects import SECOND_NODE_ADDRESS, TARGET_PORT, own_node
from kproxy_ipt.testing.sockets import Protocol, sctp_available
from kproxy_ipt.testing.topology import BOTH, CLUSTER_CIDRS

_PODS = ("podA", "podB", "podC", "podD", "podE")
_DEFAULTS = Config(cluster_cidrs=tuple(CLUSTER_CIDRS.values()))


@pytest.fixture(scope="module", params=["nft", "legacy"])
def backend(request: pytest.FixtureRequest) -> str:
    """The backend of the iptables programs."""
    return str(request.param)


@pytest.fixture(params=BOTH, ids=str)
def family(request: pytest.FixtureRequest) -> Family:
    """The address family under test."""
    return Family(request.param)


@pytest.fixture(scope="module")
def lab(backend: str) -> Iterator[Lab]:  # noqa: ARG001 - one lab for each backend
    """A lab for rules of one backend, whose pods answer on the target port in every protocol of the kernel."""
    with _prepared_lab() as made:
        yield made


@pytest.fixture
def fresh() -> Iterator[Lab]:
    """The same for one test alone."""
    with _prepared_lab() as made:
        yield made


@pytest.fixture
def sync(lab: Lab, backend: BackendWish, family: Family) -> Callable[..., RunReport]:
    """
    Write the rules of some objects of one family into the node of a lab, with the default configuration or `config`.

    The Node object is added where none is given. What earlier tests left in conntrack is forgotten once.
    """
    lab.node.run("conntrack", "-F")

    def write(
        *api_objects: Service | EndpointSlice | Node, config: Config = _DEFAULTS, into: Lab | None = None
    ) -> RunReport:
        objects = Objects(
            services=tuple(found for found in api_objects if isinstance(found, Service)),
            endpoint_slices=tuple(found for found in api_objects if isinstance(found, EndpointSlice)),
            nodes=tuple(found for found in api_objects if isinstance(found, Node)) or (own_node(),),
        )
        target = Target(netns=(into or lab).node.netns, backend=backend, families=(family,))
        report = sync_once(lambda: objects, config, NODE_NAME, target)
        if report.error:
            raise report.error
        return report

    return write


@pytest.fixture
def iptables(backend: str, family: Family) -> Callable[..., str]:
    """Run the program of backend and family in the node of a lab, as in `iptables(lab, "-P", "FORWARD", "DROP")`."""
    program = f"{'ip6tables' if family is Family.IPV6 else 'iptables'}-{backend}"

    def run(where: Lab, *arguments: str, suffix: str = "", stdin: str | None = None) -> str:
        return where.node.run(f"{program}{suffix}", *arguments, stdin=stdin)

    return run


@contextmanager
def _prepared_lab() -> Iterator[Lab]:
    with Lab(_PODS) as made:
        for family in BOTH:
            client, second = made.client.address(family), SECOND_NODE_ADDRESS[family]
            made.node.run("ip", "address", "add", f"{second}/{family.bits}", "dev", "lo")
            # Every node has a way into the world; without it a process there finds no route to a cluster IP.
            made.node.run(
                "ip", f"-{'6' if family is Family.IPV6 else '4'}", "route", "replace", "default", "via", client
            )
        for protocol in get_args(Protocol):
            if protocol != "sctp" or sctp_available():
                for place in (*made.pods, made.remote):
                    place.serve(TARGET_PORT, protocol=protocol)
        yield made
