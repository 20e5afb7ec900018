"""
Which folders must be watched, and for which of their entries, so that no change of what a path leads to is missed.

A path changes its meaning when the entry at its end changes, but also when any folder or link on the way does:
Kubernetes updates a mounted ConfigMap by renaming one hidden link, deployments by turning `current` to another release.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from kproxy_ipt.sources.files import SUFFIXES

_MAX_LINKS = 40
"""As many as the kernel follows."""
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse.", "ceph", "virtiofs", "afs", "lustre", "gfs2", "ocfs2", "glusterfs")


class Interest:
    """What matters in one folder: entries on the way to something, files, or all manifests and folders in it."""

    def __init__(self) -> None:
        self.ways: set[str] = set()
        self.files: set[str] = set()
        self.manifests = False

    @property
    def contents_matter(self) -> bool:
        """Whether writing into files of this folder matters, beside what they are called."""
        return self.manifests or bool(self.files)

    def exceeds(self, other: "Interest | None") -> bool:
        """Whether something matters that did not matter to *other*."""
        if other is None:
            return True
        return not (self.ways <= other.ways and self.files <= other.files and self.manifests <= other.manifests)

    def has_file(self, name: str) -> bool:
        """Whether the content of an entry matters."""
        return name in self.files or (self.manifests and name.endswith(SUFFIXES) and not name.startswith("."))

    def has_name(self, name: str) -> bool:
        """Whether it matters that an entry appears or vanishes; one without suffix may be a link to a folder."""
        return name in self.ways or name in self.files or (self.manifests and not name.startswith("."))


class Places:
    """Folders by their real paths, each with what matters there."""

    def __init__(self) -> None:
        self.folders: dict[str, Interest] = {}

    def add_path(self, path: Path) -> None:
        """The way to *path*, whether it exists or not, and its content if it is a file."""
        folder = "/"
        waiting = list(reversed((Path.cwd() / path).parts[1:]))
        links = 0
        while waiting:
            part = waiting.pop()
            if part == os.pardir:
                folder = str(Path(folder).parent)
                continue
            entry = Path(folder) / part
            target = _link_target(entry)
            self._add_entry(folder, part, is_end=not waiting and target is None and not entry.is_dir())
            if target is None:
                if waiting and not entry.is_dir():
                    return
                folder = str(entry)
                continue
            links += 1
            if links > _MAX_LINKS:
                return
            folder = "/" if target.is_absolute() else folder
            waiting += [step for step in reversed(target.parts) if step != "/"]

    def add_manifests(self, folders: Iterable[Path], files: Iterable[Path]) -> None:
        """Folders that were searched for manifests, and the files that were found in them."""
        for folder in folders:
            self._interest(os.path.realpath(folder)).manifests = True
            if folder.is_symlink():
                self.add_path(folder)
        for file in files:
            if file.is_symlink():
                self.add_path(file)

    def _interest(self, folder: str) -> Interest:
        return self.folders.setdefault(folder, Interest())

    def _add_entry(self, folder: str, name: str, *, is_end: bool) -> None:
        interest = self._interest(folder)
        (interest.files if is_end else interest.ways).add(name)


def _link_target(entry: Path) -> Path | None:
    try:
        return entry.readlink()
    except OSError:
        return None


def remote_filesystem(folder: str, mounts: str) -> str:
    """
    The type of the file system of *folder* if other machines can change it without this kernel noticing.

    Args:
        folder: A real path.
        mounts: The content of `/proc/self/mountinfo`.

    Returns:
        `nfs4` or the like, "" for local ones and where it is not known.
    """
    longest, found = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].replace(r"\040", " ")
        if len(point) >= len(longest) and (folder == point or folder.startswith(point.rstrip("/") + "/")):
            longest, found = point, right.split()[0]
    return found if found.startswith(_REMOTE) else ""
