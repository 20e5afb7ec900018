"""What can be tried of the comparison with kube-proxy without one: reading its metrics."""

import pytest

from bench.kube_proxy import asked, first_duration

_FULL = """# TYPE kubeproxy_sync_full_proxy_rules_duration_seconds histogram
kubeproxy_sync_full_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="+Inf"} 2
kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 3.0
kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2
kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv6"} 0.25
kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1
kubeproxy_sync_proxy_rules_duration_seconds_sum 99
kubeproxy_sync_proxy_rules_duration_seconds_count 1
"""


def test_full_syncs_are_told_by_their_own_metric() -> None:
    """Time of one sync, both families together."""
    assert first_duration(_FULL) == 1.75


def test_an_old_kube_proxy_tells_all_syncs_in_one() -> None:
    """Without the newer metric the older one counts, which has no labels there."""
    old = "\n".join(_FULL.splitlines()[-2:])

    assert first_duration(old) == 99


def test_no_sync_yet() -> None:
    """A count of 0 is no answer."""
    assert first_duration(_FULL.replace('"IPv6"} 1', '"IPv6"} 0').replace("seconds_count 1", "seconds_count 0")) is None


def test_nothing_is_asked_without_all_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KUBECONFIG alone, which many people have, starts nothing that writes rules."""
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.delenv("KUBE_PROXY", raising=False)

    assert asked() is None
