"""
A machine in memory: the iptables programs of both families, over kernels in memory.

It stands where `SubprocessRunner` stands, so everything above is the real thing: the arguments, the reading of listings
and of refusals, the plans. The programs are those of nf_tables 1.8.9 in what they print.

It stands for programs and tables alone. Kernel settings are those of the real machine: whoever syncs with it switches
`iptables.localhostNodePorts` off, or else the sync sets `route_localnet` where the test runs.
"""

from collections.abc import Iterable, Mapping, Sequence

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.machine import Machine, with_runner
from kproxy_ipt.errors import KernelError, RestoreError
from kproxy_ipt.kernel.backend import BackendChoice
from kproxy_ipt.kernel.command import DEFAULT_TIMEOUT_S, Completed
from kproxy_ipt.kernel.programs import Backend, Programs
from kproxy_ipt.testing.fake_kernel import FakeKernel

_WORDS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
_REFUSED = 4


class FakeMachine:
    """
    Programs and tables of some families.

    Attributes:
        kernels: By family.
        inputs: What the restore programs were fed, oldest first; refused inputs too.
        saves: How many listings were made.
        refused: A line that holds one of these texts is refused, as a kernel does that lacks something.
        names_rules: Whether a refusal names the line of the rule; if not, that of the `COMMIT`, as on legacy.
        broken: Raised instead of running any program, as one that hangs is.
    """

    def __init__(self, families: Iterable[Family] = (Family.IPV4,)) -> None:
        self.kernels: Mapping[Family, FakeKernel] = {family: FakeKernel() for family in families}
        self.inputs: list[str] = []
        self.saves = 0
        self.refused: set[str] = set()
        self.names_rules = True
        self.broken: KernelError | None = None

    def opened(self, backend: Backend = Backend.NFT) -> Machine:
        """What `open_machine` gives: the real readers and writers; with LEGACY a table is one transaction."""
        programs = {family: _programs(family) for family in self.kernels}
        choice = BackendChoice(backend, "a machine in memory", programs, {})
        return with_runner(Machine(choice, {}, lock_wait_s=5), self)

    def run(
        self,
        arguments: Sequence[str],
        *,
        stdin: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,  # noqa: ARG002 - part of what a runner takes
    ) -> Completed:
        """See `Runner.run`."""
        if self.broken is not None:
            raise self.broken
        program = arguments[0]
        kernel = next(kernel for family, kernel in self.kernels.items() if program.startswith(_WORDS[family]))
        if program.endswith("-save"):
            self.saves += 1
            return Completed(tuple(arguments), 0, f"{kernel.save(counters='-c' in arguments)}# Completed\n", "", 0.0)
        self.inputs.append(stdin)
        message = self._restore(kernel, stdin)
        stderr = f"{program} v1.8.9 (nf_tables): {message}" if message else ""
        return Completed(tuple(arguments), _REFUSED if message else 0, "", stderr, 0.001)

    def feed(
        self, arguments: Sequence[str], pieces: Iterable[str], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        """See `Runner.feed`."""
        return self.run(arguments, stdin="".join(pieces), timeout_s=timeout_s)

    def start(self, arguments: Sequence[str], *, stdin: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> "_Ended":
        """See `Runner.start`; the program has ended at once."""
        return _Ended(self.run(arguments, stdin=stdin, timeout_s=timeout_s))

    def _restore(self, kernel: FakeKernel, text: str) -> str:
        """Apply the sections before the first refused line; what the program prints, "" if all is applied."""
        lines = text.split("\n")
        for number, line in enumerate(lines, start=1):
            if any(refused in line for refused in self.refused):
                start = max(at for at, head in enumerate(lines[:number]) if head.startswith("*"))
                kernel.restore("\n".join(lines[:start]))
                if not self.names_rules:
                    return f"line {lines.index('COMMIT', number) + 1} failed"
                return f"\nline {number}: RULE_APPEND failed (Invalid argument): rule in chain {line.split(' ')[1]}"
        try:
            kernel.restore(text)
        except RestoreError as error:
            absent = error.message.partition(" leads to ")[2].partition(",")[0]
            message = f"Chain '{absent}' does not exist" if absent else error.message
            return f"\nline {error.line}: {message}"
        return ""


class _Ended:
    """A program that has ended."""

    def __init__(self, completed: Completed) -> None:
        self._completed = completed

    def wait(self) -> Completed:
        return self._completed


def _programs(family: Family) -> Programs:
    word = f"{_WORDS[family]}-nft"
    return Programs(
        Backend.NFT,
        family,
        (word,),
        (f"{word}-save",),
        (f"{word}-restore",),
        (1, 8, 9),
        f"{word}-restore v1.8.9 (nf_tables)",
    )
