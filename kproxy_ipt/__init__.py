"""kproxy-ipt: Kubernetes Services and EndpointSlices become iptables rules."""

__version__ = "0.1.0"

__all__ = ["__version__"]
