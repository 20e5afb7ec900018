"""Chains of a service port that somebody changed: every change is told, and never taken for what it is not."""

import re

import pytest

from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.testing.desired import desired_for
from kproxy_ipt.testing.objects import endpoint_slice, service
from kproxy_ipt.trace.compare import compare

_CONFIG = decode_config(
    b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n", "c"
).config


def _balancer() -> Ruleset:
    """Two endpoints behind a load balancer with source ranges, and clients that are remembered."""
    web = service(
        "web",
        service_type="LoadBalancer",
        ingress=("198.51.100.1",),
        source_ranges=("203.0.113.0/24",),
        affinity_timeout_s=60,
    )
    endpoints = endpoint_slice(web, ["10.244.1.1", "10.244.1.2"])
    return with_base_chains(desired_for(web, endpoints, config=_CONFIG))


def _words(pattern: str, replacement: str) -> str:
    """What is told of the Service once the lines that match *pattern* (of the whole text) are replaced."""
    ruleset = _balancer()
    text, count = re.subn(pattern, replacement, render_save(ruleset), flags=re.MULTILINE)
    assert count
    (change,) = compare(ruleset, parse_save(text, ruleset.family)).services
    return "\n".join(change.words)


@pytest.mark.parametrize(
    ("pattern", "replacement", "told"),
    [
        (r"^(:|-A )KUBE-EXT.*\n", "", "chain KUBE-EXT is missing"),
        (r"^(-A KUBE-SERVICES .*198\.51.* -j) \S+", r"\1 KUBE-ODD", "added: -A nat KUBE-SERVICES -d 198.51.100.1/32"),
        (r"^(-A KUBE-EXT\S+)( -j KUBE-SVC)", r"\1 -j MARK --or-mark 1\n\1\2", "added: -A KUBE-EXT -j MARK --set-xmark"),
        (r"^(-A KUBE-FW\S+) -s", r"\1 -j DROP\n\1 -s", "added: -A KUBE-FW -j DROP"),
        (r"^(-A KUBE-SVC.* -d) 10.96.0.10/32", r"\1 10.96.0.9/32", "KUBE-SVC ! -s 10.244.0.0/16 -d 10.96.0.9/32"),
        (r"^(-A KUBE-SEP\S+) .* -j DNAT.*1\.1:80", r"\1 -j RETURN", "leads nowhere"),
        (
            r"^(-A KUBE-SEP.*)-m recent .* --rsource (.*1\.1:80)",
            r"\1\2",
            "10.244.1.1:80: clients are asked for in vain",
        ),
        (r"KUBE-SEP-JF3Z6SQX4NYECG4A", "KUBE-SEP-AAAAAAAAAAAAAAAA", "10.244.1.1:80: unusual name KUBE-SEP-AAA"),
        (r"^(-A KUBE-SEP\S+) -p(.*1\.1:80)", r"\1 -i eth0 -p\2", "added: -A chain of 10.244.1.1:80 -i eth0"),
        (r"^-A KUBE-SEP.* -s 10.244.1.1/32.*\n", "", "10.244.1.1:80: connections to itself are no longer masqueraded"),
        (
            r"^(-A KUBE-SERVICES -d 10.96.0.10/32)",
            r"\1 -i eth0",
            "added: -A nat KUBE-SERVICES -d 10.96.0.10/32 -i eth0",
        ),
        (r"^(-A KUBE-SERVICES -d 10.96.*--dport) 80", r"\1 80:81", "entry cluster IP 10.96.0.10:80 removed"),
        (r"^(-A KUBE-SVC.*1\.2:80.*--seconds) 60", r"\1 30", "affinity of endpoint 10.244.1.2:80: 60 s -> 30 s"),
    ],
)
def test_changed_rule_is_told(pattern: str, replacement: str, told: str) -> None:
    """In words where it has a meaning, as the rule that it is where it has none."""
    assert told in _words(pattern, replacement)


def test_order_of_unusual_rules_is_told() -> None:
    """Which of two rules comes first may decide, whatever they do."""
    first, second = "-j MARK --set-xmark 0x1/0x1", "-j MARK --set-xmark 0x2/0x2"
    text = render_save(_balancer())
    begin = re.findall(r"^-A KUBE-EXT\S+", text, re.MULTILINE)[0]
    before, after = (
        parse_save(text.replace(begin, f"{begin} {one}\n{begin} {other}\n{begin}", 1), _balancer().family)
        for one, other in ((first, second), (second, first))
    )
    (change,) = compare(before, after).services

    assert change.words == ("unusual rules stand in another order",)
