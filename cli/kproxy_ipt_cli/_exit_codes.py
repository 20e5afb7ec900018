"""
Exit codes: documented in `docs/exit-codes.md`, stable.

`check` is the one command with meanings of its own: 0 same, 1 drift, 2 cannot tell (for whatever reason).
"""

from enum import IntEnum

from kproxy_ipt.errors import (
    ConfigError,
    KernelError,
    KproxyError,
    LockTimeoutError,
    MissingFeatureError,
    MissingPrivilegeError,
    MissingProgramError,
    NamespaceError,
    RestoreError,
    RulesetError,
    SourceError,
)


class ExitCode(IntEnum):
    """What a command ended with."""

    DONE = 0
    DRIFT = 1
    USAGE = 2
    CANNOT_TELL = 2
    OBJECTS_REJECTED = 3
    CONFIG = 4
    SOURCE = 5
    MISSING = 6
    PRIVILEGE = 7
    REFUSED = 8
    LOCKED = 9
    SERVICES_REFUSED = 10
    BUG = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_CODES: tuple[tuple[type[KproxyError], ExitCode], ...] = (
    (ConfigError, ExitCode.CONFIG),
    (SourceError, ExitCode.SOURCE),
    (MissingProgramError, ExitCode.MISSING),
    (MissingFeatureError, ExitCode.MISSING),
    (NamespaceError, ExitCode.MISSING),
    (MissingPrivilegeError, ExitCode.PRIVILEGE),
    (LockTimeoutError, ExitCode.LOCKED),
    (RestoreError, ExitCode.REFUSED),
    (KernelError, ExitCode.REFUSED),
    (RulesetError, ExitCode.BUG),
)


def exit_code_of(error: KproxyError) -> ExitCode:
    """The code for *error*; the most specific row counts. A namespace that may not be entered is not missing."""
    if isinstance(error, NamespaceError) and isinstance(error.__cause__, PermissionError):
        return ExitCode.PRIVILEGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.BUG)
