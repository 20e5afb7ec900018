"""Requests as `lab curl` sends them."""

import subprocess

import pytest

from kproxy_ipt.lab.curl import curl
from kproxy_ipt.lab.destination import Wish

from .conftest import RunningLab

pytestmark = pytest.mark.kernel

# Of a client whose first connections begin side by side, one in 40 meets two pods: 150 miss that once in 40 runs.
_TRIES = 150


def test_a_client_that_affinity_does_not_know_meets_one_pod(lab: RunningLab) -> None:
    """However often the kernel forgets the client, all requests of one call go to the same pod."""
    lab.kubectl("patch", "svc", "web", "-p", '{"spec":{"sessionAffinity":"ClientIP"}}')
    lab.answers("web", "--from", "n1")
    forget = ["ip", "netns", "exec", lab.layout.netns("n1"), "sh", "-c"]
    forget.append("for list in /proc/net/xt_recent/KUBE-SEP-*; do echo / > $list; done")

    pods = set()
    for _ in range(_TRIES):
        subprocess.run(forget, check=True)
        report = curl(lab.layout, Wish(target="web", place="n1"), count=10, timeout_s=2)
        pods.add(tuple(each.name for each in report.answers))

    assert pods == {("web-1",), ("web-2",), ("web-3",)}
