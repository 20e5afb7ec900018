"""
Shell scripts in the place of programs: they count their calls, and can be told to fail or to hang while they are used.

::

    shims = Shims(folder)
    shims.install("iptables-nft-restore")
    with DaemonProcess(netns, "--from", objects, shims=shims.folder):
        shims.act("iptables-nft-restore", "exit 4")
"""

import shutil
from pathlib import Path

from kproxy_ipt.kernel.command import program_environment

_SCRIPT = """#!/bin/sh
REAL={real}
printf '%s\\n' "$*" >> "$0.calls"
[ -e "$0.act" ] && . "$0.act"
exec "$REAL" "$@"
"""
# A minute at most, so that a test which fails leaves nobody behind.
_HOLDS = """n=0
case "$*" in *--noflush*) while [ -e "$0.act" ] && [ $((n += 1)) -lt 1200 ]; do sleep 0.05; done;; esac"""
# As the programs of both backends do where the kernel lacks an extension, or they themselves an option.
_LACKS = """[ "$1" = --version ] && exec "$REAL" "$@"
input=$(cat)
line=$(printf '%s\\n' "$input" | grep -n -- '^-[AI] .*{uses}' | head -1 | cut -d: -f1)
[ -z "$line" ] && {{ printf '%s\\n' "$input" | "$REAL" "$@"; exit; }}
{words}
echo "$(basename "$0"): line $line failed" >&2
exit 4
"""
_UNSUPPORTED = 'echo "Warning: Extension {} revision 0 not supported, missing kernel module?" >&2'
_UNKNOWN = """echo "$(basename "$0") v1.8.9: unknown option \\"{}\\"" >&2"""


class Shims:
    """
    The scripts in one folder.

    Attributes:
        folder: To be put first in `PATH`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def install(self, *names: str) -> None:
        """Put scripts in the place of programs; at first they only count."""
        for name in names:
            real = shutil.which(name, path=program_environment()["PATH"])
            path = self.folder / name
            path.write_text(_SCRIPT.format(real=real))
            path.chmod(0o755)

    def act(self, name: str, script: str) -> None:
        """From now on run *script* first: `exit 4`, or `sleep 3`, or anything of sh; the real program is `$REAL`."""
        draft = self.folder / f"{name}.draft"
        draft.write_text(f"{script}\n")
        draft.replace(self.folder / f"{name}.act")

    def hold(self, name: str) -> None:
        """From now on a restore program that writes does not begin until `relent`."""
        self.act(name, _HOLDS)

    def lack(self, name: str, extension: str) -> None:
        """
        From now on a restore program refuses new rules that use an extension, in the words of a machine that lacks it.

        Args:
            name: Of the program.
            extension: A match (`recent`), a target in capitals (`REJECT`), or an option (`--random-fully`).
        """
        if extension.startswith("--"):
            uses, words = extension, _UNKNOWN.format(extension)
        else:
            uses = f"-{'j' if extension.isupper() else 'm'} {extension}"
            words = _UNSUPPORTED.format(extension)
        self.act(name, _LACKS.format(uses=uses, words=words))

    def relent(self, name: str) -> None:
        """From now on only count again."""
        (self.folder / f"{name}.act").unlink(missing_ok=True)

    def calls(self, *names: str, among: str = "") -> int:
        """How often programs were started so far, with *among* among their arguments."""
        counts = [self.folder / f"{name}.calls" for name in names]
        return sum(among in line for count in counts if count.exists() for line in count.read_text().splitlines())

    def restores(self, backend: str = "nft") -> int:
        """How often a restore program was given something to write."""
        return self.calls(f"iptables-{backend}-restore", f"ip6tables-{backend}-restore", among="--noflush")
