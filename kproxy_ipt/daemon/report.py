"""What a run did, as values that commands print and the daemon will count."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.set_aside import SetAside
from kproxy_ipt.errors import Finding, KproxyError

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, steps done and steps in all."""


class FamilyReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    One family's part of a run.

    Attributes:
        transactions: Restore inputs that the kernel took; 0 means that nothing had to be written.
        bytes: Size of their text.
        chains_written: Chains created or rewritten.
        chains_deleted: Chains deleted.
        rules_written: Rules written, jumps from built-in chains included.
        rules_deleted: Rules taken out of chains that are not ours.
        chains: Chains that we have in the kernel now.
        rules: Rules in them.
        services: Services that have an address of this family.
        service_ports: Their ports.
        endpoints: Endpoints behind these ports, usable or not.
        flows_listed: Records of connection tracking that were looked at after the rules stood.
        flows_deleted: Those of them that contradicted the rules, and are gone.
        seconds: By phase: `list` (waiting for the listing), `build`, `plan`, `restore`, `conntrack`.
        notes: Lines for people.
        set_aside: Services that were left with what they had, since the kernel refuses their rules.
        error: Why nothing (more) was written, or None.
    """

    transactions: int = 0
    bytes: int = 0
    chains_written: int = 0
    chains_deleted: int = 0
    rules_written: int = 0
    rules_deleted: int = 0
    chains: int = 0
    rules: int = 0
    services: int = 0
    service_ports: int = 0
    endpoints: int = 0
    flows_listed: int = 0
    flows_deleted: int = 0
    seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    error: KproxyError | None = None


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    A run over all families.

    Attributes:
        backend: `nft` or `legacy`, and *reason* says why; both "" where none was chosen.
        node: Own node name, "" for a clean-up.
        families: In the order of writing.
        unavailable: Families that cannot be served, with the reason.
        findings: What was odd in the objects, or rejected.
        notes: Lines for people that concern no single family.
        seconds: By phase: `machine` (choosing the backend), `read` (objects), `total`.
        dry_run: Whether nothing was written on purpose.
    """

    backend: str
    reason: str
    node: str = ""
    families: Mapping[Family, FamilyReport] = msgspec.field(default_factory=dict)
    unavailable: Mapping[Family, str] = msgspec.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    dry_run: bool = False

    @property
    def error(self) -> KproxyError | None:
        """The first family's error, or None."""
        return next((report.error for report in self.families.values() if report.error), None)
