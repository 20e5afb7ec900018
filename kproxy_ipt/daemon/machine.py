"""
The machine that rules are written to: one network namespace, one backend, the families that work there.

Everything here happens inside the namespace; reading objects does not, since the way to the API server starts where
the process is. So a sync enters the namespace twice: to start the listings, and to apply.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.model import Config
from kproxy_ipt.kernel.addresses import interface_addresses
from kproxy_ipt.kernel.backend import Backend, BackendChoice, choose_backend
from kproxy_ipt.kernel.command import DEFAULT_TIMEOUT_S, Runner, SubprocessRunner
from kproxy_ipt.kernel.iptables import Iptables
from kproxy_ipt.kernel.nfacct import ensure_counters, read_counters
from kproxy_ipt.kernel.preflight_probe import lacking_parts
from kproxy_ipt.kernel.sysctls import enable_route_localnet, tcp_be_liberal, write_sysctl
from kproxy_ipt.rules.names import TABLES
from kproxy_ipt.rules.options import NFACCT_COUNTERS
from kproxy_ipt.ruleset.scan import SavedTables, scan_save
from kproxy_ipt.state.model import MachineFacts

BackendWish = Literal["auto", "nft", "legacy"]

_TCP_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where rules are written.

    Attributes:
        netns: Name or path of the network namespace, None for the one of the process.
        backend: A pinned backend, or `auto`.
        families: In the order of writing.
        lock_wait_s: How long to wait for the xtables lock (legacy backend), whole seconds.
        program_timeout_s: After this a program that saves or restores is killed, with its children.
    """

    netns: str | None = None
    backend: BackendWish = "auto"
    families: tuple[Family, ...] = (Family.IPV4, Family.IPV6)
    lock_wait_s: int = 5
    program_timeout_s: float = DEFAULT_TIMEOUT_S


class Machine(msgspec.Struct, frozen=True):
    """The chosen backend and, by family, the programs that read and write its tables."""

    choice: BackendChoice
    iptables: Mapping[Family, Iptables]
    lock_wait_s: int
    program_timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def is_staged(self) -> bool:
        """Whether large changes go in several transactions, and tables can be removed."""
        return self.choice.backend is Backend.NFT

    def scan(self, family: Family) -> SavedTables:
        """
        List the tables that we have rules in.

        Raises:
            KernelError: A table cannot be listed.
        """
        return scan_save(self.iptables[family].start_save(TABLES).text())


def open_machine(target: Target, runner: Runner | None = None) -> Machine:
    """
    Choose the backend in the current namespace.

    Raises:
        MissingProgramError: No program of the wanted backend.
        MissingFeatureError: No family works.
        MissingPrivilegeError: The tables may not be read.
    """
    runner = runner or SubprocessRunner()
    choice = choose_backend(runner, target.backend, target.families)
    return with_runner(Machine(choice, {}, target.lock_wait_s, target.program_timeout_s), runner)


def with_runner(machine: Machine, runner: Runner) -> Machine:
    """The same machine, its programs started by *runner*."""
    iptables = {
        family: Iptables(runner, programs, machine.lock_wait_s, timeout_s=machine.program_timeout_s)
        for family, programs in machine.choice.programs.items()
    }
    return Machine(machine.choice, iptables, machine.lock_wait_s, machine.program_timeout_s)


def machine_facts(machine: Machine, *, ensure: bool, runner: Runner | None = None) -> MachineFacts:
    """
    What the current namespace adds to the objects; optional parts are tried elsewhere (`kernel/preflight_probe.py`).

    Args:
        machine: Of the same namespace.
        ensure: Whether missing accounting objects are created; if not, only those that exist count.
        runner: Starts the programs that try optional parts; None for the real ones.
    """
    counters = ensure_counters(NFACCT_COUNTERS) if ensure else frozenset(read_counters(NFACCT_COUNTERS))
    return MachineFacts(
        interface_addresses=interface_addresses(),
        tcp_be_liberal=tcp_be_liberal(),
        nfacct_counters=counters,
        lacking=lacking_parts(runner or SubprocessRunner(), machine.choice.programs.values()),
    )


def tune_before(config: Config) -> Sequence[str]:
    """Set what rules depend on before they are built; returns a line for each setting that could not be made."""
    if not config.conntrack.tcp_be_liberal:
        return ()
    outcome = write_sysctl(_TCP_BE_LIBERAL, "1")
    return (f"{outcome.problem}; packets of state INVALID are dropped",) if outcome.problem else ()


def tune_after(*, localhost_node_ports: bool) -> Sequence[str]:
    """
    Let loopback addresses be routed where node ports on localhost need it.

    Only once the guard in KUBE-FIREWALL stands, or neighbours could reach services that listen on 127.0.0.1.
    """
    if not localhost_node_ports:
        return ()
    outcome = enable_route_localnet()
    return (f"{outcome.problem}; node ports do not answer on 127.0.0.1",) if outcome.problem else ()
