"""Names of service ports as people write them: `[svc/][NAMESPACE/]NAME[:PORT]`."""

from collections.abc import Iterable

import click

NO_RULES = "the kernel has no rule of any Service; `kproxy-ipt preflight` tells in which backend rules are in use"


def is_named(wanted: str, service_port: str) -> bool:
    """Whether *service_port* (`namespace/name:port`) is meant by what a person wrote; "" means every one."""
    if not wanted:
        return True
    name, colon, port = wanted.removeprefix("svc/").partition(":")
    known_name, _, known_port = service_port.partition(":")
    if "/" not in name:
        known_name = known_name.partition("/")[2]
    return name == known_name and (not colon or port == known_port)


def require_one(wanted: str, service_ports: Iterable[str]) -> None:
    """
    Make sure that somebody is meant.

    Raises:
        UsageError: No rule names such a service port, or any at all.
    """
    known = tuple(service_ports)
    if wanted and not known:
        raise click.UsageError(NO_RULES)
    if wanted and not any(is_named(wanted, one) for one in known):
        raise click.UsageError(f"no rule names a Service {wanted!r}: expected [NAMESPACE/]NAME[:PORT]")
