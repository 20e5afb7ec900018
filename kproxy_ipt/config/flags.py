"""
Flags of the command line and the configuration file become one Config, with kube-proxy's precedence.

Without `--config` the flags change the defaults; with it the file stands alone, but for the flags that are kept (the
name of the node, logging). A flag can say what a file cannot: `--iptables-min-sync-period=0`, `--healthz-port=0`. And
`--bind-address`, other than the field, leaves the default addresses of the servers as they are.

Two things are more lenient than in kube-proxy: `--cluster-cidr=` is "no range" instead of an error, and every flag
that a file overrides is named in a note.

Source: `Options.AddFlags`, `Options.Complete` of kube-proxy 1.36; pflag.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kproxy_ipt.addresses import canonical_address
from kproxy_ipt.config.build import DecodedConfig, build_config
from kproxy_ipt.config.decode import QUANTITY, read_document
from kproxy_ipt.config.document import (
    HEALTHZ_PORT,
    METRICS_PORT,
    STATUS_PORT,
    Document,
    FlushFrequency,
    Quantity,
    VModuleEntry,
    with_defaults,
    with_value,
)
from kproxy_ipt.config.document_text import plain_integer, shown
from kproxy_ipt.config.duration import parse_duration
from kproxy_ipt.config.flag_table import FLAGS, FLAGS_BY_NAME, FlagKind, FlagSpec
from kproxy_ipt.config.host_port import port_number, split_host_port, with_port
from kproxy_ipt.errors import ConfigError

__all__ = ["FLAGS", "FlagKind", "FlagSpec", "Flags", "effective_config"]

Flags: TypeAlias = Mapping[str, tuple[str, ...]]
"""The flags that were given: by name without dashes, the text of every occurrence in order; `true` for a bare BOOL."""

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_UINT = re.compile(r"[0-9]{1,10}")


def effective_config(file: bytes | None, origin: str, flags: Flags) -> DecodedConfig:
    """
    The configuration that a command line means.

    Args:
        file: Content of the file that `--config` names, None if there is none.
        origin: Name of that file, for messages.
        flags: All flags that were given, those without a field included.

    Returns:
        As `decode_config`; notes also name flags without effect.

    Raises:
        ConfigError: Every flag with a value that cannot be read (also of flags that the file overrides); else what is
            wrong with the file; else every value that validation refuses.
    """
    values = _read_values(flags)
    if file is None:
        document = _with_flags(with_defaults(Document()), values, FLAGS)
        return build_config(_with_server_ports(document, values), _flag_notes(values))
    decoded = read_document(file, origin)
    document = _with_flags(decoded.document, values, tuple(spec for spec in FLAGS if spec.is_kept))
    vmodule = _joined_vmodule(decoded.document, values)
    document = with_value(document, "logging.vmodule", vmodule)
    ignored = tuple(
        f"--{name} is ignored: with --config the file decides" for name in values if not FLAGS_BY_NAME[name].is_kept
    )
    return build_config(document, (*decoded.notes, *ignored, *_deprecations(values)))


def _read_values(flags: Flags) -> dict[str, object]:
    values: dict[str, object] = {}
    problems: list[str] = []
    for name, texts in flags.items():
        spec = FLAGS_BY_NAME.get(name)
        if spec is None:
            problems.append(f"unknown flag --{name}")
            continue
        try:
            value = _read_value(spec, texts)
        except ValueError as error:
            problems.append(f"--{name}: {error}")
            continue
        if value is not None:
            values[name] = value
    if problems:
        raise ConfigError(tuple(problems))
    return values


def _read_value(spec: FlagSpec, texts: tuple[str, ...]) -> object:
    """The value of all occurrences, None where they leave the flag as if it were not given."""
    if spec.name == "hostname-override":
        return _host_name(texts[-1])
    if spec.name == "log-flush-frequency":
        return FlushFrequency(parse_duration(texts[-1]).nanoseconds)
    if spec.kind is FlagKind.LIST:
        return tuple(entry for text in texts if text for entry in text.split(","))
    if spec.kind is FlagKind.GATES:
        return dict(_gate(pair.strip()) for text in texts for pair in text.split(",") if pair.strip())
    if spec.kind is FlagKind.VMODULE:
        return tuple(_vmodule_entry(pair.strip()) for text in texts for pair in text.split(",") if pair.strip())
    readings = [_READERS[spec.kind](text) for text in texts]
    return readings[-1]


def _host_name(text: str) -> str | None:
    if text and not text.strip():
        raise ValueError("the name of a node must not be blank")
    return text.strip().lower() or None


def _gate(pair: str) -> tuple[str, bool]:
    name, equals, text = pair.partition("=")
    if not equals:
        raise ValueError(f"found {shown(pair)}, expected name=true or name=false")
    return name.strip(), _bool(text.strip())


def _vmodule_entry(pair: str) -> VModuleEntry:
    pattern, equals, text = pair.partition("=")
    if not (pattern and equals):
        raise ValueError(f"found {shown(pair)}, expected pattern=N")
    return VModuleEntry(file_pattern=pattern, verbosity=_uint(text))


def _bool(text: str) -> bool:
    if text not in _TRUE and text not in _FALSE:
        raise ValueError(f"found {shown(text)}, expected true or false")
    return text in _TRUE


def _int(text: str) -> int:
    number = plain_integer(text)
    if number is None or not -(2**31) <= number < 2**31:
        raise ValueError(f"found {shown(text)}, expected an integer of 32 bits")
    return number


def _uint(text: str) -> int:
    if not _UINT.fullmatch(text) or int(text) >= 2**31:
        raise ValueError(f"found {shown(text)}, expected a number from 0 to {2**31 - 1}")
    return int(text)


def _float(text: str) -> float:
    number = float(text) if _FLOAT.fullmatch(text) else float("inf")
    if abs(number) > 3.4e38:
        raise ValueError(f"found {shown(text)}, expected a number")
    return number


def _ip(text: str) -> str | None:
    if text and canonical_address(text) is None:
        raise ValueError(f"found {shown(text)}, expected an IP address")
    return text or None


def _ip_port(text: str) -> str | None:
    if not text or canonical_address(text) is not None:
        return text or None
    parts = split_host_port(text)
    if parts is None or canonical_address(parts.host) is None or port_number(parts.port) is None:
        raise ValueError(f"found {shown(text)}, expected IP or IP:port, with an IPv6 address in brackets")
    return text


def _quantity(text: str) -> Quantity:
    if not QUANTITY.fullmatch(text):
        raise ValueError(f'found {shown(text)}, expected a quantity such as "64Ki"')
    return Quantity(text)


_READERS: dict[FlagKind, Callable[[str], object]] = {
    FlagKind.STRING: str,
    FlagKind.BOOL: _bool,
    FlagKind.INT: _int,
    FlagKind.UINT: _uint,
    FlagKind.FLOAT: _float,
    FlagKind.DURATION: parse_duration,
    FlagKind.IP: _ip,
    FlagKind.IP_PORT: _ip_port,
    FlagKind.QUANTITY: _quantity,
}


def _with_flags(document: Document, values: Mapping[str, object], specs: tuple[FlagSpec, ...]) -> Document:
    for spec in specs:
        if spec.name in values and spec.path:
            for path in (spec.path, *spec.also):
                document = with_value(document, path, values[spec.name])
    return document


def _joined_vmodule(document: Document, values: Mapping[str, object]) -> tuple[object, ...]:
    """Entries of the command line first, then those of the file."""
    given = values.get("vmodule")
    return (*(given if isinstance(given, tuple) else ()), *document.logging.vmodule)


def _with_server_ports(document: Document, values: Mapping[str, object]) -> Document:
    """
    Apply the deprecated port flags: 0 turns a server off, any other port goes to an address that has none.

    They do not count with `--write-config-to`, as in kube-proxy, where a bare address is then an error.
    """
    status = with_port(document.kproxy_ipt.status_bind_address, STATUS_PORT)
    document = with_value(document, "kproxyIpt.statusBindAddress", status)
    if values.get("write-config-to"):
        return document
    healthz, metrics = values.get("healthz-port", HEALTHZ_PORT), values.get("metrics-port", METRICS_PORT)
    document = with_value(document, "healthzBindAddress", _server_address(document.healthz_bind_address, healthz))
    return with_value(document, "metricsBindAddress", _server_address(document.metrics_bind_address, metrics))


def _server_address(address: str, port: object) -> str:
    return with_port(address, port) if isinstance(port, int) and port != 0 else ""


def _deprecations(values: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(
        f"--{name} is deprecated: {FLAGS_BY_NAME[name].deprecated}" for name in values if FLAGS_BY_NAME[name].deprecated
    )


def _flag_notes(values: Mapping[str, object]) -> tuple[str, ...]:
    usual = with_defaults(Document())
    is_ipvs = values.get("proxy-mode") == "ipvs"
    live = {"ipvs-sync-period", "ipvs-min-sync-period", "ipvs-scheduler"} if is_ipvs else set()
    dead = (
        f"--{name} plays no part in iptables mode"
        for name in values
        if name.startswith("ipvs-") and name not in live
        if with_value(usual, FLAGS_BY_NAME[name].path, values[name]) != usual
    )
    return (*_deprecations(values), *dead)
