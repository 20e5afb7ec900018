"""
Kernel settings under `/proc/sys`, of the network namespace of the calling thread.

Not being able to write one is an answer, not an exception: a container often may not, and the proxy works all the same.
"""

from pathlib import Path

import msgspec

_ROOT = Path("/proc/sys")
ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
TCP_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"


class SysctlOutcome(msgspec.Struct, frozen=True):
    """
    What came of writing a setting.

    Attributes:
        changed: Whether a new value was written; False as well if it was right before.
        problem: One line that says why the setting is not as wanted; "" if it is.
    """

    changed: bool
    problem: str = ""


def read_sysctl(name: str) -> str | None:
    """
    Read a setting.

    Args:
        name: With slashes (`net/ipv4/ip_forward`), or with dots where no part has a dot of its own.

    Returns:
        Its text without the newline, or None where it does not exist or may not be read.
    """
    try:
        return _path(name).read_text().rstrip("\n")
    except OSError:
        return None


def write_sysctl(name: str, value: str) -> SysctlOutcome:
    """Write a setting unless it has that value already; *name* as in `read_sysctl`."""
    present = read_sysctl(name)
    if present is not None and present.split() == value.split():
        return SysctlOutcome(changed=False)
    try:
        _path(name).write_text(value + "\n")
    except OSError as error:
        was = "it does not exist" if present is None else f"it stays {present}"
        return SysctlOutcome(changed=False, problem=f"cannot set {_dotted(name)} to {value}: {error.strerror}; {was}")
    return SysctlOutcome(changed=True)


def tcp_be_liberal() -> bool:
    """Whether conntrack accepts TCP packets out of window, whoever asked for that: then no packet is INVALID for it."""
    return (read_sysctl(TCP_BE_LIBERAL) or "0").strip() != "0"


def enable_route_localnet() -> SysctlOutcome:
    """Let packets to 127.0.0.0/8 be routed, which node ports on localhost need."""
    return write_sysctl(ROUTE_LOCALNET, "1")


def _path(name: str) -> Path:
    return _ROOT / (name.lstrip("/") if "/" in name else name.replace(".", "/"))


def _dotted(name: str) -> str:
    return name.strip("/").replace("/", ".")
