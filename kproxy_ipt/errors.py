"""
What can go wrong, as a tree split by who must act.

::

    KproxyError
    ├── ConfigError        the user's configuration: every problem at once
    ├── SourceError        objects could not be read at all: file, folder, cluster
    ├── RulesetError       text that is no ruleset, or a ruleset of ours that is inconsistent (our bug)
    └── KernelError        the machine
        ├── MissingProgramError     no iptables program of the wanted backend
        ├── MissingPrivilegeError   the kernel or the system says "not allowed"
        ├── MissingFeatureError     the program or the kernel lacks a match, a target or a table
        ├── NamespaceError          the network namespace cannot be entered
        ├── LockTimeoutError        another program holds the xtables lock
        ├── ListenError             a TCP port cannot be listened on
        ├── RestoreError            the kernel refused a restore input: line, rule, chain, owner
        └── RestoreFeatureError     both of RestoreError and MissingFeatureError: a rule needs what the machine lacks

`Finding` is not an exception: it reports what is odd about one field of one object, and what happens because of it.
"""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How much a finding costs: a note nothing, a warning something it names, a rejection the whole object."""

    NOTE = "note"
    WARNING = "warning"
    REJECTED = "rejected"


class Finding(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """
    One oddity of one object, in the words of the person who wrote the object.

    Attributes:
        object: Kind and name, `Service shop/web`; for text that is no object, where it stands: `web.yaml, document 3`.
        field: Path inside the object in Kubernetes notation, `spec.ports[0].port`; "" for the object as a whole.
        found: What stands there, shortened to a printable line.
        expected: What would be right.
        consequence: What happens now.
        severity: Whether the object is set aside.
    """

    object: str
    field: str
    found: str
    expected: str
    consequence: str
    severity: Severity

    def __str__(self) -> str:
        """The finding as one line."""
        place = f"{self.object}: {self.field}" if self.field else self.object
        return f"{place}: found {self.found}, expected {self.expected}; {self.consequence}"


class KproxyError(Exception):
    """Base of all errors that this project raises on purpose."""


class ConfigError(KproxyError):
    """The configuration cannot be used; `problems` holds every one, each with its field path."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class SourceError(KproxyError):
    """Objects could not be read from a file, a folder, standard input or the cluster."""


class RulesetError(KproxyError):
    """Text that is not a ruleset, or a ruleset that contradicts itself."""


class KernelError(KproxyError):
    """The machine cannot do or did not do what was asked."""


class MissingProgramError(KernelError):
    """A program of the wanted backend is not installed."""


class MissingPrivilegeError(KernelError):
    """The process may not do this: root, or CAP_NET_ADMIN (and CAP_NET_RAW for legacy tables)."""


class MissingFeatureError(KernelError):
    """The program or the kernel lacks a match, a target or a table."""


class NamespaceError(KernelError):
    """The network namespace does not exist or cannot be entered."""


class LockTimeoutError(KernelError):
    """Another program held the xtables lock for longer than we may wait; nothing was written."""


class ListenError(KernelError):
    """A TCP port cannot be listened on: it is taken, or the address is not one of this machine."""


class RestoreError(KernelError):
    """
    The kernel refused a restore input; the transaction that holds the line was not applied.

    Attributes:
        line: 1-based number of the refused line of the input, or None where the program does not tell.
        rule: The text of that line, or "".
        chain: The chain of that rule, or "".
        owner: The service port text of that chain, or "" for fixed chains.
        message: What the program printed, cleaned.
        committed: Number of transactions of the input that were applied before.
    """

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        rule: str = "",
        chain: str = "",
        owner: str = "",
        committed: int = 0,
    ) -> None:
        place = f"line {line}: " if line is not None else ""
        cause = f" (rule: {rule})" if rule else ""
        whose = f" of service port {owner}" if owner else ""
        super().__init__(f"{place}{message}{cause}{whose}")
        self.message = message
        self.line = line
        self.rule = rule
        self.chain = chain
        self.owner = owner
        self.committed = committed


class RestoreFeatureError(RestoreError, MissingFeatureError):
    """A restore input was refused since one of its rules needs a match, target or object that the machine lacks."""
