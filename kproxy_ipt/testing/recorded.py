"""
Recorded cases: objects and configuration of one node, with the rules that a real kube-proxy made of them.

A case is a folder with `case.yaml` (title, node, sysctls), `config.yaml`, `objects.yaml`, `iptables.txt` and
`ip6tables.txt`, the last two in the canonical form.
"""

from pathlib import Path

import msgspec
import yaml

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.model import Config
from kproxy_ipt.objects.decode import decode_document
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.rules.build import Desired
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.testing.desired import ApiObject, desired_for, objects_of

CASE_FILES = frozenset({"case.yaml", "config.yaml", "objects.yaml", "iptables.txt", "ip6tables.txt"})
"""The files of a case, all of which must be there."""

INTERFACE_ADDRESSES = ("127.0.0.1", "::1", "172.31.0.2", "fd00:31::2", "fe80::1")
"""What the recording node had on its interfaces."""

_RULE_FILES = {Family.IPV4: "iptables.txt", Family.IPV6: "ip6tables.txt"}


class RecordedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case, decoded; *canonical* holds the recorded rules of each family."""

    name: str
    node_name: str
    config: Config
    objects: Objects
    machine: MachineFacts
    canonical: dict[Family, str]

    def desired(self, family: Family) -> Desired:
        """The rules that we make of the case."""
        everything: tuple[ApiObject, ...] = (
            *self.objects.services,
            *self.objects.endpoint_slices,
            *self.objects.nodes,
        )
        return desired_for(
            *everything, family=family, node_name=self.node_name, config=self.config, machine=self.machine
        )


class _NodeOfCase(msgspec.Struct):
    name: str
    ips: tuple[str, ...] = ()


class _CaseFile(msgspec.Struct):
    title: str
    shows: str
    node: _NodeOfCase
    sysctls: dict[str, object] | None = None


def recorded_case(folder: Path) -> RecordedCase:
    """
    Read the case in *folder*.

    Raises:
        OSError: A file is missing.
        msgspec.ValidationError: `case.yaml` has another shape.
    """
    described = msgspec.convert(yaml.safe_load((folder / "case.yaml").read_text()), _CaseFile)
    config = decode_config((folder / "config.yaml").read_bytes(), "config.yaml").config
    decoded = decode_document((folder / "objects.yaml").read_bytes(), "objects.yaml")
    return RecordedCase(
        name=folder.name,
        node_name=described.node.name,
        config=config,
        objects=objects_of((*decoded.services, *decoded.endpoint_slices, *decoded.nodes)),
        machine=MachineFacts(
            interface_addresses=INTERFACE_ADDRESSES,
            tcp_be_liberal=bool(described.sysctls) or config.conntrack.tcp_be_liberal,
        ),
        canonical={family: (folder / name).read_text() for family, name in _RULE_FILES.items()},
    )
