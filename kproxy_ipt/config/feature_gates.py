"""
The feature gates that have an effect in iptables mode, and those that cannot be changed.

Source: gates of kube-proxy 1.36.
"""

from collections.abc import Mapping

GATE_DEFAULTS: Mapping[str, bool] = {
    "AllAlpha": False,
    "AllBeta": False,
    "AllowServiceExternalIPs": True,
    "ComponentFlagz": True,
    "ComponentStatusz": True,
    "ContextualLogging": True,
    "LoggingAlphaOptions": False,
    "LoggingBetaOptions": True,
    "MultiCIDRServiceAllocator": True,
    "NativeHistograms": False,
    "PreferSameTrafficDistribution": True,
    "WatchListClient": True,
}

LOCKED_GATES: Mapping[str, bool] = {"MultiCIDRServiceAllocator": True, "PreferSameTrafficDistribution": True}


def is_enabled(gates: Mapping[str, bool], name: str) -> bool:
    """Whether the gate *name* of `GATE_DEFAULTS` is on, given the explicit settings *gates*."""
    if name == "LoggingAlphaOptions" and name not in gates:
        return gates.get("AllAlpha", False)
    return gates.get(name, GATE_DEFAULTS[name])
