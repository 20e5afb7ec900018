"""The command line of kproxy-ipt."""

from kproxy_ipt import __version__

__all__ = ["__version__"]
