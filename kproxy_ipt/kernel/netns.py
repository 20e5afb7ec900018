"""
Network namespaces: entering one by name or path, and telling which one we are in.

A namespace belongs to a thread. Programs started inside inherit it, sockets opened inside stay in it, and of the files
under `/proc` only `/proc/thread-self/net` and `/proc/sys/net` show it (`/proc/net` is that of the main thread).
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kproxy_ipt.errors import NamespaceError

NAMED_FOLDER = "/run/netns"
"""Where `ip netns` keeps its names."""
_OWN = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000


@contextmanager
def inside(target: str | None) -> Iterator[None]:
    """
    Run the body in another network namespace; the calling thread comes back afterwards.

    Not for coroutines that wait inside: other tasks of the thread would be in the namespace too.

    Args:
        target: A name that `ip netns` knows, a path (anything with a slash: `/proc/123/ns/net`), or None: stay here.

    Raises:
        NamespaceError: There is no such namespace, it is none, or it may not be entered.
    """
    if target is None:
        yield
        return
    with _elsewhere(lambda: _enter(target)):
        yield


@contextmanager
def scratch() -> Iterator[None]:
    """
    Run the body in a new, empty network namespace that nobody else sees; it is gone once the body and its programs end.

    The calling thread comes back afterwards. Loopback is down there.

    Raises:
        NamespaceError: It may not be made (CAP_SYS_ADMIN), or the kernel cannot.
    """
    with _elsewhere(_enter_new):
        yield


def _enter_new() -> None:
    before = current_namespace_id()
    _unshare()
    if current_namespace_id() == before:
        raise NamespaceError("a network namespace cannot be made: the kernel stayed in the old one")


@contextmanager
def _elsewhere(enter: Callable[[], None]) -> Iterator[None]:
    """Run the body where *enter* leads, and come back."""
    try:
        home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NamespaceError(f"the own network namespace cannot be opened: {error.strerror}") from error
    try:
        enter()
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(home)


def current_namespace_id() -> str:
    """The namespace of the calling thread as the kernel names it: `net:[4026531840]`."""
    return str(Path(_OWN).readlink())


def _enter(target: str) -> None:
    path = target if "/" in target else f"{NAMED_FOLDER}/{target}"
    try:
        wanted = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NamespaceError(_explain(error, target, path)) from error
    try:
        _setns(wanted)
    except OSError as error:
        raise NamespaceError(_explain(error, target, path)) from error
    finally:
        os.close(wanted)


def _setns(descriptor: int) -> None:
    """`os.setns` of Python 3.12, for 3.11 as well."""
    setns = getattr(os, "setns", None)
    if setns is not None:
        setns(descriptor, _CLONE_NEWNET)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _unshare() -> None:
    """`os.unshare` of Python 3.12, for 3.11 as well."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        error = OSError(number, os.strerror(number))
        raise NamespaceError(f"a network namespace cannot be made: {error.strerror}") from error


def _explain(error: OSError, target: str, path: str) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"there is no network namespace {target} ({path} does not exist)"
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"the network namespace {target} may not be entered: root or CAP_SYS_ADMIN is needed"
    if error.errno in (errno.EINVAL, errno.EISDIR, errno.EBADF):
        return f"{path} is not a network namespace"
    return f"the network namespace {target} cannot be entered: {error.strerror}"
