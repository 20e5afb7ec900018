"""
What the kernel says of x_tables under `/proc/thread-self/net`, for the network namespace of the calling thread.

These files can be read without creating anything, unlike the legacy programs, which make a table by asking for it.
"""

from pathlib import Path

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import MissingPrivilegeError

_FOLDER = Path("/proc/thread-self/net")
_WORD = {Family.IPV4: "ip", Family.IPV6: "ip6"}


def legacy_tables(family: Family) -> tuple[str, ...]:
    """
    The legacy tables that exist in this namespace, empty ones included.

    Returns:
        Table names; () if there are none or if the kernel has no legacy iptables.

    Raises:
        MissingPrivilegeError: Only root may read the list, or who may read every file.
    """
    try:
        return tuple((_FOLDER / f"{_WORD[family]}_tables_names").read_text().split())
    except PermissionError as error:
        needed = "root or CAP_DAC_READ_SEARCH is needed; --backend nft does without"
        raise MissingPrivilegeError(f"the list of legacy tables may not be read: {needed}") from error
    except OSError:
        return ()


def kernel_extensions(family: Family) -> frozenset[str] | None:
    """
    Names of the matches and targets that the kernel has loaded, built-in ones included.

    After a rule has been tried, its extensions are either in this list or missing: trying loads modules.

    Returns:
        None where the kernel does not tell (no legacy iptables, or not root).
    """
    found: set[str] = set()
    for kind in ("matches", "targets"):
        try:
            found.update((_FOLDER / f"{_WORD[family]}_tables_{kind}").read_text().split())
        except OSError:
            return None
    return frozenset(found)
