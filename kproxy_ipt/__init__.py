"""
kproxy-ipt: Kubernetes Services and EndpointSlices become iptables rules.

The names below are the library's public ones; they are imported when they are first used, so that `import kproxy_ipt`
costs next to nothing. From objects to rules, with no kernel and no cluster:

    >>> from kproxy_ipt import Config, Family, MachineFacts, build_ruleset, node_facts, read_paths, render_save
    >>> from kproxy_ipt import take_snapshot
    >>> objects = read_paths(["manifests/examples/web.yaml"])
    >>> snapshot = take_snapshot(objects, Family.IPV4, node_facts(objects.nodes, "n1"))
    >>> desired = build_ruleset(snapshot, Config(), MachineFacts())
    >>> sorted(set(desired.owners.values()))
    ['demo/web:http']
    >>> print(render_save(desired.ruleset).splitlines()[0])
    *filter

Into a network namespace and out of it again (as root):

    report = sync_once(lambda: objects, Config(), "n1", Target(netns="lab"))
    assert report.error is None
    assert not check(lambda: objects, Config(), "n1", Target(netns="lab")).has_drift
    clean_up(Target(netns="lab"))
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kproxy_ipt.addresses import Family
    from kproxy_ipt.config.decode import decode_config
    from kproxy_ipt.config.model import Config
    from kproxy_ipt.daemon.check import CheckReport, check
    from kproxy_ipt.daemon.cleanup import clean_up
    from kproxy_ipt.daemon.machine import Target
    from kproxy_ipt.daemon.report import RunReport
    from kproxy_ipt.daemon.sync import sync_once
    from kproxy_ipt.errors import ConfigError, Finding, KernelError, KproxyError, RestoreError, SourceError
    from kproxy_ipt.objects.model import Objects
    from kproxy_ipt.rules.build import Desired, build_ruleset
    from kproxy_ipt.ruleset.canonical import canonical, canonical_ruleset
    from kproxy_ipt.ruleset.diff import compare_rulesets
    from kproxy_ipt.ruleset.model import Ruleset
    from kproxy_ipt.ruleset.parse import parse_save
    from kproxy_ipt.ruleset.render import render_save
    from kproxy_ipt.sources.cluster import ClusterConnection, read_cluster
    from kproxy_ipt.sources.files import read_paths
    from kproxy_ipt.state.model import MachineFacts, Snapshot
    from kproxy_ipt.state.snapshot import node_facts, take_snapshot

__version__ = "0.1.0"

__all__ = [
    "CheckReport",
    "ClusterConnection",
    "Config",
    "ConfigError",
    "Desired",
    "Family",
    "Finding",
    "KernelError",
    "KproxyError",
    "MachineFacts",
    "Objects",
    "RestoreError",
    "Ruleset",
    "RunReport",
    "Snapshot",
    "SourceError",
    "Target",
    "__version__",
    "build_ruleset",
    "canonical",
    "canonical_ruleset",
    "check",
    "clean_up",
    "compare_rulesets",
    "decode_config",
    "node_facts",
    "parse_save",
    "read_cluster",
    "read_paths",
    "render_save",
    "sync_once",
    "take_snapshot",
]

_NAMES_OF = {
    "addresses": ("Family",),
    "config.decode": ("decode_config",),
    "config.model": ("Config",),
    "daemon.check": ("CheckReport", "check"),
    "daemon.cleanup": ("clean_up",),
    "daemon.machine": ("Target",),
    "daemon.report": ("RunReport",),
    "daemon.sync": ("sync_once",),
    "errors": ("ConfigError", "Finding", "KernelError", "KproxyError", "RestoreError", "SourceError"),
    "objects.model": ("Objects",),
    "rules.build": ("Desired", "build_ruleset"),
    "ruleset.canonical": ("canonical", "canonical_ruleset"),
    "ruleset.diff": ("compare_rulesets",),
    "ruleset.model": ("Ruleset",),
    "ruleset.parse": ("parse_save",),
    "ruleset.render": ("render_save",),
    "sources.cluster": ("ClusterConnection", "read_cluster"),
    "sources.files": ("read_paths",),
    "state.model": ("MachineFacts", "Snapshot"),
    "state.snapshot": ("node_facts", "take_snapshot"),
}
_HOMES = {name: home for home, names in _NAMES_OF.items() for name in names}


if not TYPE_CHECKING:  # a type checker knows the names, and tells of those that do not exist

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used (PEP 562)."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *__all__})
