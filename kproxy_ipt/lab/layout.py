"""
What is where in a lab: names of namespaces, addresses, files.

Addresses are those reserved for documentation and private use; they exist in the namespaces of the lab alone, so that
several labs can have the same ones.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.testing.topology import CLUSTER_CIDRS

__all__ = ["CLUSTER_CIDRS", "DEFAULT_NAME", "DEFAULT_PORT", "NODES", "LabNode", "Layout", "layout_of", "node_named"]

DEFAULT_NAME = "lab"
DEFAULT_PORT = 6444
SERVICE_CIDRS = {Family.IPV4: "10.96.0.0/16", Family.IPV6: "fd00:10:96::/112"}
BALANCER_CIDRS = {Family.IPV4: "203.0.113.0/24", Family.IPV6: "2001:db8:203::/112"}
NODE_PORTS = range(30000, 32768)
LINK_LENGTHS = {Family.IPV4: 24, Family.IPV6: 64}
CLIENT_ADDRESSES = {Family.IPV4: "192.0.2.50", Family.IPV6: "2001:db8::50"}
WIRE, CLIENT = "wire", "client"
_ROOT = Path("/run/kproxy-ipt-lab")
_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")


@dataclass(frozen=True)
class LabNode:
    """A node: its own addresses, the addresses of its pods and of their gateway, its zone."""

    name: str
    addresses: Mapping[Family, str]
    pod_cidrs: Mapping[Family, str]
    gateways: Mapping[Family, str]
    zone: str

    def pod_addresses(self, index: int) -> dict[Family, str]:
        """The addresses of the pod with this *index*, 2 to 250, in each family."""
        return {family: f"{gateway[:-1]}{index}" for family, gateway in self.gateways.items()}


def _node(number: int) -> LabNode:
    return LabNode(
        name=f"n{number}",
        addresses={Family.IPV4: f"192.0.2.{number}0", Family.IPV6: f"2001:db8::{number}0"},
        pod_cidrs={Family.IPV4: f"10.244.{number}.0/24", Family.IPV6: f"fd00:10:244:{number}::/64"},
        gateways={Family.IPV4: f"10.244.{number}.1", Family.IPV6: f"fd00:10:244:{number}::1"},
        zone="zone-a" if number == 1 else "zone-b",
    )


NODES = (_node(1), _node(2))
FIRST_POD_INDEX, LAST_POD_INDEX = 11, 99
MOST_PODS = LAST_POD_INDEX - FIRST_POD_INDEX + 1
"""Of one node."""


def node_named(name: str) -> LabNode | None:
    """The node of that name, or None."""
    return next((node for node in NODES if node.name == name), None)


@dataclass(frozen=True)
class Layout:
    """The names and files of one lab."""

    name: str

    @property
    def folder(self) -> Path:
        """What the lab keeps on disk; its own alone."""
        return _ROOT / self.name

    @property
    def kubeconfig(self) -> Path:
        """For kubectl and kproxy-ipt."""
        return self.folder / "lab.conf"

    @property
    def state(self) -> Path:
        """What `kproxy_ipt.lab.state.LabState` holds."""
        return self.folder / "state.json"

    @property
    def namespaces(self) -> Path:
        """A folder with an empty file for each network namespace of the lab."""
        return self.folder / "namespaces"

    @property
    def fault(self) -> Path:
        """What `kproxy_ipt.lab.breaking` remembers of the fault that is to be found."""
        return self.folder / "fault.json"

    def proxy_config(self, node: str) -> Path:
        """The KubeProxyConfiguration of the kproxy-ipt of a node."""
        return self.folder / f"{node}.yaml"

    def log(self, who: str) -> Path:
        """The log of `supervisor` or of the kproxy-ipt of a node."""
        return self.folder / f"{who}.log"

    def netns(self, label: str) -> str:
        """Name of the network namespace of a node, of `wire` or of `client`."""
        return f"{self.name}-{label}"

    def pod_netns(self, namespace: str, pod: str) -> str:
        """Name of the network namespace of a pod: pods of the namespace default go by their name alone."""
        return f"{self.name}-{pod}" if namespace == "default" else f"{self.name}-{namespace}-{pod}"


def layout_of(name: str) -> Layout:
    """
    The layout of a lab.

    Raises:
        ConfigError: The name is none: a letter, then letters and digits in lower case, at most 12.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError((f"--name: {name!r} is no name of a lab: up to 12 lower case letters and digits",))
    return Layout(name)
