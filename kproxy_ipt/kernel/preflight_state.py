"""
What preflight reads and never writes: the kernel's configuration, its limits and settings, and whose tables are in use.

Everything is of the current network namespace, but for the kernel's configuration and parameters of modules.
"""

import gzip
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, MissingPrivilegeError
from kproxy_ipt.kernel.command import Runner
from kproxy_ipt.kernel.iptables import Iptables
from kproxy_ipt.kernel.programs import Backend, Installed
from kproxy_ipt.kernel.sysctls import read_sysctl
from kproxy_ipt.kernel.xtables_proc import legacy_tables

_CONFIGS = ("/proc/config.gz", "/boot/config-{release}", "/lib/modules/{release}/config")
_OPTION = re.compile(r"^(CONFIG_\w+)=([ym])$", re.MULTILINE)
_RECENT = Path("/sys/module/xt_recent/parameters")
_FULL = 0.9


class Setting(msgspec.Struct, frozen=True):
    """
    A setting or limit.

    Attributes:
        name: With dots, as `sysctl` prints it; of a module `MODULE PARAMETER`.
        value: As the kernel prints it, "" where it does not exist.
        meaning: What it is to Services.
        doubt: Why it is probably not as it should be, "" if it is.
    """

    name: str
    value: str
    meaning: str
    doubt: str = ""


class TablesInUse(msgspec.Struct, frozen=True):
    """
    What one backend holds of one family.

    Attributes:
        rules: Of all tables, whosever they are; None where they cannot be listed.
        problem: Why, or "".
    """

    backend: Backend
    family: Family
    rules: int | None
    problem: str = ""


def kernel_config() -> Mapping[str, str]:
    """Build options of the running kernel that are `y` or `m`; empty where no file tells."""
    for pattern in _CONFIGS:
        path = Path(pattern.format(release=platform.release()))
        try:
            octets = path.read_bytes()
        except OSError:
            continue
        text = (gzip.decompress(octets) if path.suffix == ".gz" else octets).decode("ascii", "replace")
        return dict(_OPTION.findall(text))
    return {}


def tables_in_use(runner: Runner, installed: Mapping[Family, Installed]) -> tuple[TablesInUse, ...]:
    """
    How many rules each installed backend holds; absent legacy tables are not asked for: that would make them.

    Raises:
        MissingPrivilegeError: The tables may not be read.
    """
    return tuple(
        _in_use(Iptables(runner, programs)) for found in installed.values() for programs in found.programs.values()
    )


def _in_use(iptables: Iptables) -> TablesInUse:
    programs = iptables.programs
    tables = legacy_tables(programs.family) if programs.backend is Backend.LEGACY else None
    if tables == ():
        return TablesInUse(programs.backend, programs.family, 0)
    try:
        text = iptables.start_save(tables).text()
    except MissingPrivilegeError:
        raise
    except KernelError as error:
        return TablesInUse(programs.backend, programs.family, None, str(error))
    return TablesInUse(programs.backend, programs.family, text.count("\n-A "))


def side_by_side(in_use: Sequence[TablesInUse]) -> str:
    """A line about rules in both backends of one family, "" if there are none: two firewalls then see each packet."""
    lines = []
    for family in dict.fromkeys(one.family for one in in_use):
        rules = {one.backend: one.rules or 0 for one in in_use if one.family is family}
        if len(rules) > 1 and all(rules.values()):
            counts = " and ".join(f"{number} in {backend}" for backend, number in rules.items())
            lines.append(f"{family.api_name} has rules in both backends: {counts}")
    return "; ".join(lines)


def settings(families: Sequence[Family]) -> tuple[Setting, ...]:
    """Limits and settings that Services of *families* depend on."""
    found = [_forwarding(family) for family in families]
    if Family.IPV4 in families:
        found.append(_plain("net/ipv4/conf/all/route_localnet", "node ports on 127.0.0.1; sync sets it"))
    found.extend(_bridge(family) for family in families)
    found.append(_plain("net/netfilter/nf_conntrack_max", "connections that can be tracked"))
    found.append(_tracked())
    found.append(_plain("net/netfilter/nf_conntrack_tcp_be_liberal", "whether TCP out of window is not INVALID"))
    found.append(_parameter("ip_list_tot", "clients that affinity remembers for each endpoint"))
    found.append(_parameter("ip_pkt_list_tot", "packets that it remembers of each"))
    return tuple(found)


def _plain(name: str, meaning: str) -> Setting:
    return Setting(name.replace("/", "."), read_sysctl(name) or "", meaning)


def _forwarding(family: Family) -> Setting:
    name = "net/ipv4/ip_forward" if family is Family.IPV4 else "net/ipv6/conf/all/forwarding"
    setting = _plain(name, f"whether {family.api_name} is forwarded")
    doubt = "" if setting.value == "1" else "nobody but this node itself reaches endpoints through it"
    return msgspec.structs.replace(setting, doubt=doubt)


def _bridge(family: Family) -> Setting:
    word = "iptables" if family is Family.IPV4 else "ip6tables"
    setting = _plain(f"net/bridge/bridge-nf-call-{word}", "whether rules see what stays within a bridge")
    doubt = "pods behind one bridge do not reach each other through a Service" if setting.value == "0" else ""
    return msgspec.structs.replace(setting, doubt=doubt)


def _tracked() -> Setting:
    count = _plain("net/netfilter/nf_conntrack_count", "connections that are tracked now")
    most = read_sysctl("net/netfilter/nf_conntrack_max") or ""
    is_full = count.value.isdigit() and most.isdigit() and int(count.value) > _FULL * int(most) > 0
    doubt = "the table is nearly full; then new connections are dropped" if is_full else ""
    return msgspec.structs.replace(count, doubt=doubt)


def _parameter(name: str, meaning: str) -> Setting:
    try:
        value = (_RECENT / name).read_text().strip()
    except OSError:
        value = ""
    return Setting(f"xt_recent {name}", value, meaning)
