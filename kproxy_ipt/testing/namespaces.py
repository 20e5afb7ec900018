"""
Throw-away network namespaces for tests that talk to the real kernel.

A namespace has its own tables, addresses, sysctls under `net` and accounting objects, so that what a test writes there
cannot be seen from outside. Root is needed (`unshare -rnm` with a tmpfs on `/run` makes an ordinary user root enough).
"""

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.kernel.netns import inside

_TIMEOUT_S = 60.0
_POLL_S = 0.001
_ADDRESSES, _GROUPS = Path("/proc/thread-self/net/if_inet6"), Path("/proc/thread-self/net/igmp6")
_SOLICITED = "ff0200000000000000000001ff"
"""The first 104 bits of a solicited-node multicast address."""


def _run_ip(*arguments: str) -> None:
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except FileNotFoundError as error:
        raise NamespaceError("the program ip (iproute2) is needed to make network namespaces") from error
    except subprocess.CalledProcessError as error:
        raise NamespaceError(f"ip {' '.join(arguments)}: {str(error.stderr).strip()}") from error


def create_namespace(label: str = "test") -> str:
    """
    Create a named network namespace with its loopback interface up.

    Args:
        label: Part of the name, for people who look at `ip netns`; letters, digits and dashes.

    Returns:
        The name, unique on this machine: `kpt-LABEL-PID-RANDOM`. It is found under `/run/netns`.

    Raises:
        NamespaceError: No privilege, or no iproute2.
    """
    name = f"kpt-{label}-{os.getpid()}-{secrets.token_hex(8)}"
    _run_ip("netns", "add", name)
    try:
        _run_ip("-n", name, "link", "set", "lo", "up")
    except BaseException:
        remove_namespace(name)
        raise
    return name


def remove_namespace(name: str) -> None:
    """
    Remove the name; the kernel frees the namespace when the last process in it ends.

    Raises:
        NamespaceError: There is no such namespace.
    """
    _run_ip("netns", "delete", name)


def wait_for_neighbours(netns: str) -> None:
    """
    Wait until all interfaces can be asked for their IPv6 addresses, some milliseconds.

    A worker of the kernel lets an interface listen for the question after its address was made, "nodad" or not. A
    neighbour that asks before that gets no answer, and asks again a second later.

    Args:
        netns: Name of the network namespace.

    Raises:
        NamespaceError: There is no such namespace, or that does not happen.
    """
    deadline_s = time.monotonic() + _TIMEOUT_S
    with inside(netns):
        while missing := _unasked():
            if time.monotonic() > deadline_s:
                raise NamespaceError(f"interfaces of {netns} do not listen for {', '.join(sorted(missing))}")
            time.sleep(_POLL_S)


def _unasked() -> set[str]:
    """Groups of the addresses of the current namespace that their interfaces have not joined, as `INTERFACE GROUP`."""
    if not _ADDRESSES.exists():  # a kernel without IPv6
        return set()
    addresses = [line.split() for line in _ADDRESSES.read_text(encoding="ascii").splitlines()]
    wanted = {f"{line[5]} {_SOLICITED}{line[0][-6:]}" for line in addresses if line[5] != "lo"}
    return wanted - {" ".join(line.split()[1:3]) for line in _GROUPS.read_text(encoding="ascii").splitlines()}


@contextmanager
def temporary_namespace(label: str = "test") -> Iterator[str]:
    """
    Create a network namespace, give its name, remove it at the end.

    Raises:
        NamespaceError: See `create_namespace`.
    """
    name = create_namespace(label)
    try:
        yield name
    finally:
        remove_namespace(name)


def write_net_sysctls(netns: str, values: Mapping[str, str]) -> None:
    """Write settings of a namespace, by path below `/proc/sys/net`; what the kernel lacks is passed over."""
    with inside(netns):
        for path, value in values.items():
            entry = Path("/proc/sys/net", path)
            if entry.exists():
                entry.write_text(value, encoding="ascii")
