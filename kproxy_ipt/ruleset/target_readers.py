"""
Options of a target -> its value: one small function for each class of `targets.py` that has options.

As with matches, a reader that answers None leaves an `OpaqueTarget` with the text. Source of the names and their
short forms: iptables 1.8.9.
"""

from collections.abc import Callable, Mapping

from kproxy_ipt.addresses import Family
from kproxy_ipt.ruleset.match_readers import ALL_ONES, number, value_and_mask
from kproxy_ipt.ruleset.targets import Dnat, Masquerade, Reject, SetMark, Snat, Target
from kproxy_ipt.ruleset.words import Known, Option, Options, known_options

VERDICTS = frozenset({"ACCEPT", "DROP", "RETURN"})

TARGET_EXTENSIONS = frozenset(
    [
        "AUDIT",
        "CHECKSUM",
        "CLASSIFY",
        "CLUSTERIP",
        "CONNMARK",
        "CONNSECMARK",
        "CT",
        "DNAT",
        "DNPT",
        "DSCP",
        "ECN",
        "FULLCONENAT",
        "HL",
        "HMARK",
        "IDLETIMER",
        "LED",
        "LOG",
        "MARK",
        "MASQUERADE",
        "NETMAP",
        "NFLOG",
        "NFQUEUE",
        "NOTRACK",
        "QUEUE",
        "RATEEST",
        "REDIRECT",
        "REJECT",
        "SECMARK",
        "SET",
        "SNAT",
        "SNPT",
        "SYNPROXY",
        "TARPIT",
        "TCPMSS",
        "TCPOPTSTRIP",
        "TEE",
        "TOS",
        "TPROXY",
        "TRACE",
        "TTL",
        "ULOG",
    ]
)
"""Names after `-j` that are programs' extensions, not chains, unless the table declares a chain of that name."""

Reader = Callable[[Options, Family], Target | None]

_REJECT_NAMES: Mapping[Family, Mapping[str, str]] = {
    Family.IPV4: {
        "net-unreach": "icmp-net-unreachable",
        "host-unreach": "icmp-host-unreachable",
        "proto-unreach": "icmp-proto-unreachable",
        "port-unreach": "icmp-port-unreachable",
        "net-prohib": "icmp-net-prohibited",
        "host-prohib": "icmp-host-prohibited",
        "admin-prohib": "icmp-admin-prohibited",
        "tcp-rst": "tcp-reset",
    },
    Family.IPV6: {
        "no-route": "icmp6-no-route",
        "adm-prohibited": "icmp6-adm-prohibited",
        "addr-unreach": "icmp6-addr-unreachable",
        "port-unreach": "icmp6-port-unreachable",
        "policy-fail": "icmp6-policy-fail",
        "reject-route": "icmp6-reject-route",
    },
}


def _are_flags_plain(options: Options) -> bool:
    return not any(option.negated for option in options.values())


def _reject(options: Options, family: Family) -> Target | None:
    kind = options.get("--reject-with", Option(argument="port-unreach")).argument
    return Reject(_REJECT_NAMES[family].get(kind, kind)) if _are_flags_plain(options) else None


def _set_mark(options: Options, _family: Family) -> Target | None:
    if len(options) != 1 or not _are_flags_plain(options):
        return None
    ((name, option),) = options.items()
    if name in ("--set-xmark", "--set-mark"):
        found = value_and_mask(option.argument)
        if found is None:
            return None
        value, mask = found
        return SetMark(value, mask if name == "--set-xmark" else mask | value)
    bits = number(option.argument)
    if bits is None:
        return None
    return {"--and-mark": SetMark(0, bits ^ ALL_ONES), "--or-mark": SetMark(bits, bits)}.get(name, SetMark(bits, 0))


def _dnat(options: Options, _family: Family) -> Target | None:
    if "--to-destination" not in options or not _are_flags_plain(options):
        return None
    return Dnat(
        options["--to-destination"].argument, random="--random" in options, persistent="--persistent" in options
    )


def _snat(options: Options, _family: Family) -> Target | None:
    if "--to-source" not in options or not _are_flags_plain(options):
        return None
    return Snat(
        options["--to-source"].argument,
        random="--random" in options,
        random_fully="--random-fully" in options,
        persistent="--persistent" in options,
    )


def _masquerade(options: Options, _family: Family) -> Target | None:
    if not _are_flags_plain(options):
        return None
    return Masquerade(
        options.get("--to-ports", Option()).argument,
        random="--random" in options,
        random_fully="--random-fully" in options,
    )


_MARK = known_options(words="--set-xmark --set-mark --and-mark --or-mark --xor-mark")

KNOWN_TARGETS: Mapping[str, tuple[Known, Reader]] = {
    "REJECT": (known_options(words="--reject-with"), _reject),
    "MARK": (_MARK, _set_mark),
    "DNAT": (known_options("--random --persistent", words="--to-destination"), _dnat),
    "SNAT": (known_options("--random --random-fully --persistent", words="--to-source"), _snat),
    "MASQUERADE": (known_options("--random --random-fully", words="--to-ports"), _masquerade),
}
"""Name of a target -> the options that its class holds, and their reader."""
