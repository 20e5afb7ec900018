"""
Which backend to write to: nf_tables or legacy, chosen from evidence, and which families can be used.

A node has two separate stores of rules. Writing to the one that nobody else uses works, but the two then fight: the
host's firewall, kubelet and container engines look at the other. So the choice is made from what is in the kernel, it
is the same on each later start (our own chains are evidence), it can be pinned, and its reason is one sentence.

Looking changes nothing: legacy programs are not asked about tables that do not exist (asking would create them), and
it is cheap: `iptables-nft -S CHAIN` takes 4 ms for a built-in chain beside 115,000 rules, where a save takes 0.7 s.

Source: the order of evidence is that of the Kubernetes `iptables-wrappers`, with our own chains before it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, MissingFeatureError, MissingPrivilegeError, MissingProgramError
from kproxy_ipt.kernel.command import Runner
from kproxy_ipt.kernel.nft_tables import nat_problem
from kproxy_ipt.kernel.programs import Backend, Features, Installed, Programs, features, installed_programs
from kproxy_ipt.kernel.refusals import is_about_missing_table, is_about_privilege, needed_privilege
from kproxy_ipt.kernel.sysctls import read_sysctl
from kproxy_ipt.kernel.xtables_proc import legacy_tables

__all__ = ["Backend", "BackendChoice", "Features", "Programs", "choose_backend", "features"]

_HINT_CHAINS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
_OUR_JUMP = "-j KUBE-SERVICES"
_JUMPING_CHAINS = ("PREROUTING", "OUTPUT")
_LOOK_TIMEOUT_S = 60.0
_IF_INET6 = "/proc/thread-self/net/if_inet6"
_DISABLE_IPV6 = "net/ipv6/conf/all/disable_ipv6"
_LOCK_WAIT_S = 5


class BackendChoice(msgspec.Struct, frozen=True):
    """
    The backend, why, and the programs of each usable family.

    Attributes:
        reason: One sentence for people.
        programs: By family, in the order asked for; at least one.
        unavailable: For each other family that was asked for: one line with the reason.
        oddities: One line for each program of a usable family that is there and does not answer as it should, with
            what is used.
    """

    backend: Backend
    reason: str
    programs: Mapping[Family, Programs]
    unavailable: Mapping[Family, str]
    oddities: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """Which backend would be written to and why, and what is installed for each family that was asked for."""

    backend: Backend
    reason: str
    installed: Mapping[Family, Installed]


def choose_backend(
    runner: Runner, wanted: Literal["auto", "nft", "legacy"], families: Sequence[Family]
) -> BackendChoice:
    """
    Choose the backend for the current network namespace and find out which families work.

    The evidence for `auto`, in this order: only one backend is installed; our own chains with their jumps are in
    exactly one; kubelet's hint chains are in nft, or else in legacy; legacy holds more rules than nft; the backend of
    the program that is called just `iptables`; nft. Once legacy is chosen, the nat table is created if it is missing.

    Args:
        runner: Starts the programs in the namespace of the calling thread.
        wanted: A pinned backend, or `auto`.
        families: The families to serve, primary first.

    Raises:
        MissingProgramError: No iptables program at all, or none of the pinned backend, or none for any family.
        MissingFeatureError: The programs are there, but the kernel can do none of *families*.
        MissingPrivilegeError: The tables may not be read.
    """
    decision = decide(runner, wanted, families)
    return _usable(runner, decision.backend, decision.reason, decision.installed)


def decide(runner: Runner, wanted: Literal["auto", "nft", "legacy"], families: Sequence[Family]) -> Decision:
    """
    The backend that `choose_backend` takes, whether it works or not; makes no table.

    Raises:
        MissingProgramError: No iptables program at all, or none of the pinned backend.
        MissingPrivilegeError: The tables may not be read.
    """
    installed = installed_programs(runner, families)
    available = [backend for backend in Backend if any(backend in found.programs for found in installed.values())]
    if not available:
        raise MissingProgramError(f"no iptables programs are installed{_problems(installed)}")
    if wanted == "auto":
        backend, reason = _choose(_Evidence(runner, installed), available)
    else:
        backend, reason = Backend(wanted), f"the backend {wanted} is pinned by the configuration"
        if backend not in available:
            there = f"there is {available[0]}"
            raise MissingProgramError(
                f"the backend {wanted} is pinned, but its programs are not installed ({there}){_problems(installed)}"
            )
    return Decision(backend, reason, installed)


def _problems(installed: Mapping[Family, Installed]) -> str:
    return "".join(f"; {line}" for found in installed.values() for line in found.problems)


def _choose(evidence: "_Evidence", available: Sequence[Backend]) -> tuple[Backend, str]:
    if len(available) == 1:
        return available[0], f"only the {available[0]} programs are installed"
    ours = [backend for backend in Backend if evidence.has_our_jumps(backend)]
    if len(ours) == 1:
        return ours[0], f"our chains are in the {ours[0]} tables"
    for backend in Backend:
        hint = evidence.hint_chain(backend)
        if hint:
            return backend, f"kubelet's chain {hint} is in the {backend} tables"
    in_legacy = evidence.rule_count(Backend.LEGACY)
    in_nft = evidence.rule_count(Backend.NFT) if in_legacy else 0
    if in_legacy > in_nft:
        return Backend.LEGACY, f"the legacy tables hold more rules ({in_legacy}) than the nft tables ({in_nft})"
    plain = evidence.plain()
    if plain is not None:
        return plain, f"no rules speak for a backend, and the program iptables is the {plain} one"
    return Backend.NFT, "no rules speak for a backend, and nft is the newer one"


class _Evidence:
    """What the kernel holds in each backend; asked for when needed, the legacy listing once for each family."""

    def __init__(self, runner: Runner, installed: Mapping[Family, Installed]) -> None:
        self._runner = runner
        self._installed = installed
        self._legacy_listings: dict[Family, str] = {}

    def plain(self) -> Backend | None:
        """The backend of the plain program of the primary family."""
        return next(iter(self._installed.values())).plain

    def has_our_jumps(self, backend: Backend) -> bool:
        """Whether a built-in nat chain jumps to our dispatch, in any family."""
        if backend is Backend.LEGACY:
            return any(_OUR_JUMP in self._legacy_listing(programs) for programs in self._programs(backend))
        return any(
            _OUR_JUMP in self._listing(programs, "nat", chain)
            for programs in self._programs(backend)
            for chain in _JUMPING_CHAINS
        )

    def hint_chain(self, backend: Backend) -> str:
        """The chain of kubelet that is in the mangle table, or ""."""
        for programs in self._programs(backend):
            for chain in _HINT_CHAINS:
                if backend is Backend.LEGACY:
                    found = f"\n:{chain} " in self._legacy_listing(programs)
                else:
                    found = f"-N {chain}" in self._listing(programs, "mangle", chain)
                if found:
                    return chain
        return ""

    def rule_count(self, backend: Backend) -> int:
        """The number of rules of all tables and families; a backend that cannot be listed counts as empty."""
        if backend is Backend.LEGACY:
            return sum(self._legacy_listing(programs).count("\n-A ") for programs in self._programs(backend))
        return sum(self._run(*programs.save).count("\n-A ") for programs in self._programs(backend))

    def _programs(self, backend: Backend) -> list[Programs]:
        return [found.programs[backend] for found in self._installed.values() if backend in found.programs]

    def _listing(self, programs: Programs, table: str, chain: str) -> str:
        return self._run(*programs.command, "-t", table, "-S", chain)

    def _legacy_listing(self, programs: Programs) -> str:
        if programs.family not in self._legacy_listings:
            exists = legacy_tables(programs.family)
            self._legacy_listings[programs.family] = self._run(*programs.save) if exists else ""
        return self._legacy_listings[programs.family]

    def _run(self, *arguments: str) -> str:
        try:
            completed = self._runner.run(arguments, timeout_s=_LOOK_TIMEOUT_S)
        except MissingProgramError:
            return ""
        if completed.exit_status == 0:
            return completed.stdout
        if is_about_privilege(completed.stderr):
            raise MissingPrivilegeError(
                f"the tables may not be read: {needed_privilege(arguments[0])} ({arguments[0]})"
            )
        return ""


def _usable(runner: Runner, backend: Backend, reason: str, installed: Mapping[Family, Installed]) -> BackendChoice:
    usable: dict[Family, Programs] = {}
    unavailable: dict[Family, str] = {}
    for family, found in installed.items():
        problem = _family_problem(runner, backend, family, found)
        if problem:
            unavailable[family] = problem
        else:
            usable[family] = found.programs[backend]
    if usable:
        oddities = [
            f"{problem}; used: {' '.join(programs.restore)} ({programs.version_text})"
            for family, programs in usable.items()
            for problem in installed[family].problems
        ]
        return BackendChoice(backend, reason, usable, unavailable, tuple(oddities))
    why = "; ".join(f"{family}: {problem}" for family, problem in unavailable.items())
    if any(backend in found.programs for found in installed.values()):
        raise MissingFeatureError(f"no IP family can be used: {why}")
    raise MissingProgramError(f"no IP family can be used: {why}")


def _family_problem(runner: Runner, backend: Backend, family: Family, found: Installed) -> str:
    """Why *family* cannot be used, as one line, or ""."""
    if backend not in found.programs:
        word = "iptables" if family is Family.IPV4 else "ip6tables"
        return "; ".join(found.problems) or f"there is no {word} program of the backend {backend}"
    return absent_family(family) or _nat_problem(runner, found.programs[backend])


def absent_family(family: Family) -> str:
    """Why the current namespace has no *family*, as one line, or ""."""
    if family is Family.IPV6:
        try:
            with open(_IF_INET6):  # noqa: PTH123 - nothing is read: it is there or not
                pass
        except OSError:
            return "the kernel has no IPv6"
        if (read_sysctl(_DISABLE_IPV6) or "0") == "1":
            return "IPv6 is switched off (net.ipv6.conf.all.disable_ipv6 = 1)"
    return ""


def _nat_problem(runner: Runner, programs: Programs) -> str:
    if programs.backend is Backend.LEGACY and "nat" in legacy_tables(programs.family):
        return ""
    wait = ["-w", str(_LOCK_WAIT_S)] if features(programs).command_wait else []
    arguments = [*programs.command, *wait, "-t", "nat", "-S", "POSTROUTING"]
    try:
        completed = runner.run(arguments, timeout_s=_LOOK_TIMEOUT_S)
    except KernelError as error:
        return str(error)
    if completed.exit_status != 0:
        if is_about_privilege(completed.stderr):
            raise MissingPrivilegeError(f"the nat table may not be read: {needed_privilege(arguments[0])}")
        if is_about_missing_table(completed.stderr):
            lines = [line for line in completed.stderr.splitlines() if not line.startswith("#")]
            return f"there is no nat table: {lines[0] if lines else programs.command[0]}"
    return nat_problem(programs.family) if programs.backend is Backend.NFT else ""
