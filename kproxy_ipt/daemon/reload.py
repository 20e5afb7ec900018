"""
A configuration file that changes while the daemon runs: what counts at once, and what needs a restart.

kube-proxy ends itself when its file is written and misses the symbolic link swap of a mounted ConfigMap; here whatever
rules, periods and logging depend on is followed live, and the rest is named.
"""

import msgspec

from kproxy_ipt.config.model import Config

_LIVE = (
    "iptables",
    "detect_local_mode",
    "bridge_interface",
    "interface_name_prefix",
    "cluster_cidrs",
    "node_port_addresses",
    "conntrack",
    "logging",
    "shape",
    "external_ip_ranges",
    "feature_gates",
)


class Reload(msgspec.Struct, frozen=True):
    """
    What a new file means.

    Attributes:
        config: The configuration to go on with.
        changed: Fields that count from now on.
        restart: Fields that differ and count after a restart only.
    """

    config: Config
    changed: tuple[str, ...]
    restart: tuple[str, ...]


def reload_config(running: Config, wanted: Config) -> Reload:
    """Take over into *running* what can be taken over of *wanted*."""
    differing = [name for name in Config.__struct_fields__ if getattr(running, name) != getattr(wanted, name)]
    live = {name: getattr(wanted, name) for name in differing if name in _LIVE}
    return Reload(
        msgspec.structs.replace(running, **live),
        tuple(live),
        tuple(name for name in differing if name not in _LIVE),
    )
