"""Settings of connection tracking at start."""

import pytest

from kproxy_ipt.config.model import ConntrackConfig
from kproxy_ipt.daemon.tuning import tune_conntrack, wanted_maximum
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.kernel.sysctls import read_sysctl
from kproxy_ipt.testing.namespaces import temporary_namespace

_UDP = "net/netfilter/nf_conntrack_udp_timeout"
_CLOSE_WAIT = "net/netfilter/nf_conntrack_tcp_timeout_close_wait"
_QUIET = ConntrackConfig(
    max_per_core=0, min=0, tcp_established_timeout_s=0, tcp_close_wait_timeout_s=0, udp_timeout_s=0,
    udp_stream_timeout_s=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("per_core", "least", "cpus", "expected"),
    [
        (32768, 131072, 2, 131072),
        (32768, 131072, 8, 262144),
        (32768, 131072, 64, 1048576),
        (32768, 2000000, 64, 1048576),
        (32768, 2000000, 2, 2000000),
        (0, 131072, 8, 0),
        (-1, 131072, 8, 0),
    ],
)
def test_maximum_grows_with_processors_between_its_bounds(per_core: int, least: int, cpus: int, expected: int) -> None:
    """As in kube-proxy: at least `min`, at most 1048576 unless `min` is more, 0 leaves it alone."""
    assert wanted_maximum(ConntrackConfig(max_per_core=per_core, min=least), cpus) == expected


@pytest.mark.kernel
def test_zero_values_leave_everything_alone() -> None:
    """Nothing is written, so nothing can fail."""
    with temporary_namespace("tuning") as netns, inside(netns):
        before = [read_sysctl(name) for name in (_UDP, _CLOSE_WAIT)]

        assert tune_conntrack(_QUIET) == ()
        assert [read_sysctl(name) for name in (_UDP, _CLOSE_WAIT)] == before


@pytest.mark.kernel
def test_timeouts_are_set_in_the_namespace() -> None:
    """Each has a setting of its own."""
    with temporary_namespace("tuning") as netns, inside(netns):
        config = ConntrackConfig(max_per_core=0, tcp_close_wait_timeout_s=1234, udp_timeout_s=56)

        assert tune_conntrack(config) == ()
        assert (read_sysctl(_CLOSE_WAIT), read_sysctl(_UDP)) == ("1234", "56")


@pytest.mark.kernel
def test_setting_that_cannot_be_made_is_told_and_stops_nothing() -> None:
    """The limit belongs to the whole machine: in a namespace it can be read only, and the timeouts are set anyway."""
    with temporary_namespace("tuning") as netns, inside(netns):
        one_more = int(read_sysctl("net/netfilter/nf_conntrack_max") or 0) + 1
        config = ConntrackConfig(max_per_core=1, min=one_more, udp_timeout_s=57)
        problems = tune_conntrack(config, cpus=1)

        assert "net/netfilter/nf_conntrack_max" in problems[0].replace(".", "/")
        assert "new ones are dropped" in problems[0]
        assert read_sysctl(_UDP) == "57"
