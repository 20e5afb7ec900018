"""
Kernel settings for connection tracking, made once at start.

Each that cannot be made is told with what is there, what was wanted and what follows; none stops the start: in a lab or
a container without rights on `/proc/sys` rules work all the same.

Source: `conntrack.*` of KubeProxyConfiguration; kube-proxy v1.36, which gives up where a setting cannot be made.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from kproxy_ipt.config.model import ConntrackConfig
from kproxy_ipt.kernel.sysctls import read_sysctl, write_sysctl

_PREFIX = "net/netfilter/nf_conntrack_"
_MOST = 1048576
_HASH_SIZE = "/sys/module/nf_conntrack/parameters/hashsize"


def wanted_maximum(config: ConntrackConfig, cpus: int) -> int:
    """Connections that the kernel should be able to track; 0 means that its limit is left alone."""
    if config.max_per_core <= 0:
        return 0
    scaled = config.max_per_core * cpus
    return _MOST if scaled > _MOST else max(scaled, config.min)


def tune_conntrack(config: ConntrackConfig, *, cpus: int | None = None) -> tuple[str, ...]:
    """
    Make the settings that *config* asks for.

    Args:
        config: Zero values leave the kernel's setting alone.
        cpus: Number of processors, default those of this machine.

    Returns:
        A line for each setting that could not be made.
    """
    return tuple(_problems(config, wanted_maximum(config, cpus or os.cpu_count() or 1)))


def _problems(config: ConntrackConfig, maximum: int) -> Iterator[str]:
    if maximum:
        yield from _set_maximum(maximum)
    timeouts = {
        "tcp_timeout_established": config.tcp_established_timeout_s,
        "tcp_timeout_close_wait": config.tcp_close_wait_timeout_s,
        "udp_timeout": config.udp_timeout_s,
        "udp_timeout_stream": config.udp_stream_timeout_s,
    }
    for name, seconds in timeouts.items():
        if seconds > 0:
            yield from _set(f"{_PREFIX}{name}", str(int(seconds)), "the kernel's own timeout counts")


def _set_maximum(maximum: int) -> Iterator[str]:
    """A limit that is large enough is left alone, so nothing is told where nothing is amiss."""
    name = f"{_PREFIX}max"
    present = read_sysctl(name)
    if present is not None and present.isdigit() and int(present) >= maximum:
        return
    yield from _set(name, str(maximum), "with more connections than that, new ones are dropped")
    yield from _set_hash_size(maximum // 4)


def _set_hash_size(wanted: int) -> Iterator[str]:
    path = Path(_HASH_SIZE)
    try:
        if int(path.read_text(encoding="ascii")) < wanted:
            path.write_text(str(wanted), encoding="ascii")
    except (OSError, ValueError) as error:
        yield f"{_HASH_SIZE}: wanted {wanted}, {error}; look-ups of connections are slower with very many of them"


def _set(name: str, value: str, effect: str) -> Iterator[str]:
    outcome = write_sysctl(name, value)
    if outcome.problem:
        yield f"{outcome.problem}; wanted {value}, found {read_sysctl(name)}: {effect}"
