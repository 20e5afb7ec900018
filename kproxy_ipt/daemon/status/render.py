"""
Templates -> HTML. Every value is escaped, whatever it holds: names, reasons and messages come from objects or programs.

Templates and static files are package data in `pages/`.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from kproxy_ipt import __version__
from kproxy_ipt.daemon.answers import Answer

HTML = "text/html; charset=utf-8"
_STATIC = {
    "status.css": "text/css; charset=utf-8",
    "status.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_PAGES = files("kproxy_ipt.daemon.status") / "pages"


class StaticFile(msgspec.Struct, frozen=True):
    """A style sheet or script; *version* changes with its content."""

    body: bytes
    content_type: str
    version: str


@cache
def static_file(name: str) -> StaticFile | None:
    """The file called *name*, or None."""
    if name not in _STATIC:
        return None
    body = (_PAGES / name).read_bytes()
    return StaticFile(body, _STATIC[name], hashlib.sha256(body).hexdigest()[:12])


def page(template: str, values: Mapping[str, object], *, status: int = 200) -> Answer:
    """A page from `pages/TEMPLATE`."""
    text = _environment().get_template(template).render(values)
    return Answer(status=status, body=text.encode(), content_type=HTML)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("kproxy_ipt.daemon.status", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        {"number": number, "percent": percent, "clock": clock, "iso": iso, "ago": ago, "size": size, "ms": milliseconds}
    )
    environment.globals.update(static=_static_address, version=__version__)
    return environment


def _static_address(name: str) -> str:
    found = static_file(name)
    return f"/static/{name}?{found.version}" if found else f"/static/{name}"


def number(value: int) -> str:
    """`12,345`."""
    return f"{value:,}"


def percent(part: float) -> str:
    """`33.3 %`, `100 %`."""
    return f"{100 * part:.1f}".removesuffix(".0") + " %"


def clock(unix_s: float) -> str:
    """The time of day in UTC, to the second."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S}"


def iso(unix_s: float) -> str:
    """Date and time in UTC, for programs."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def ago(seconds: float) -> str:
    """How long, in one unit: `12 s`, `5 min`, `3 h`, `2 d`."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size(octets: int) -> str:
    """`900 B`, `12 KiB`, `1.4 MiB`."""
    if octets < 1024:
        return f"{octets} B"
    return f"{octets / 1024:.0f} KiB" if octets < 1024**2 else f"{octets / 1024**2:.1f} MiB"


def milliseconds(seconds: float) -> str:
    """`3.2`, `120`: milliseconds with two digits that count."""
    value = 1000 * seconds
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"
