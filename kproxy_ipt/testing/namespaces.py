"""
Throw-away network namespaces for tests that talk to the real kernel.

A namespace has its own tables, addresses, sysctls under `net` and accounting objects, so that what a test writes there
cannot be seen from outside. Root is needed (`unshare -rnm` with a tmpfs on `/run` makes an ordinary user root enough).
"""

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from kproxy_ipt.errors import NamespaceError

_TIMEOUT_S = 20.0


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
