"""
inotify, the part of the kernel that tells about changes in folders: its system calls, and its events as values.

Source: inotify(7).
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from functools import cache

import msgspec

MODIFY = 0x00000002
ATTRIB = 0x00000004
CLOSE_WRITE = 0x00000008
MOVED_FROM = 0x00000040
MOVED_TO = 0x00000080
CREATE = 0x00000100
DELETE = 0x00000200
DELETE_SELF = 0x00000400
MOVE_SELF = 0x00000800
UNMOUNT = 0x00002000
OVERFLOW = 0x00004000
IGNORED = 0x00008000
IS_FOLDER = 0x40000000
_ONLY_FOLDERS = 0x01000000
_HEADER = struct.Struct("=iIII")
_BUFFER = 1 << 17


class FileEvent(msgspec.Struct, frozen=True):
    """
    One event.

    Attributes:
        watch: What `Inotify.add` returned; -1 for `OVERFLOW`.
        mask: What happened, as bits.
        name: Of the entry of the folder; "" for the folder itself.
    """

    watch: int
    mask: int
    name: str


class Inotify:
    """An inotify descriptor, non-blocking."""

    def __init__(self) -> None:
        """Raises OSError: too many of them (EMFILE), or a kernel without inotify."""
        self._descriptor = _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        """For event loops: readable when events wait."""
        return self._descriptor

    def add(self, folder: str, mask: int) -> int:
        """
        Watch a folder, or change what is watched in it.

        Returns:
            The number of the watch: one and the same for a folder that is watched already.

        Raises:
            OSError: No such folder, no right to read it, or too many watches (ENOSPC).
        """
        return _checked(_libc().inotify_add_watch(self._descriptor, os.fsencode(folder), mask | _ONLY_FOLDERS))

    def remove(self, watch: int) -> None:
        """Watch no longer; that it is gone already is no error."""
        _libc().inotify_rm_watch(self._descriptor, watch)

    def read(self) -> Iterator[FileEvent]:
        """All events that wait, oldest first."""
        while True:
            try:
                octets = os.read(self._descriptor, _BUFFER)
            except BlockingIOError:
                return
            yield from _events(octets)

    def close(self) -> None:
        """End all watches."""
        os.close(self._descriptor)


def _events(octets: bytes) -> Iterator[FileEvent]:
    offset = 0
    while offset + _HEADER.size <= len(octets):
        watch, mask, _, length = _HEADER.unpack_from(octets, offset)
        offset += _HEADER.size
        yield FileEvent(watch, mask, os.fsdecode(octets[offset : offset + length].rstrip(b"\0")))
        offset += length


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
