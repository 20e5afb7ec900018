"""Which requests the status page answers."""

import pytest

from kproxy_ipt.daemon.answers import Request
from kproxy_ipt.daemon.status.guard import is_open, refusal


def _status(bound_host: str = "127.0.0.1", **headers: str) -> int:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    answer = refusal(Request(headers=named), bound_host)
    return 200 if answer is None else answer.status


@pytest.mark.parametrize("host", ["127.0.0.1:10258", "localhost", "LOCALHOST:8080", "[::1]:10258", "[::1]"])
def test_loopback_names_are_answered(host: str) -> None:
    """Whatever the port, which a tunnel may change."""
    assert _status(host=host) == 200


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:10258", "127.0.0.1.evil.example", "10.0.0.1", "x["])
def test_foreign_names_are_refused(host: str) -> None:
    """A name that somebody lets resolve to loopback would let pages of theirs read ours."""
    assert _status(host=host) == 421


def test_the_bound_address_is_answered() -> None:
    """In any spelling; no other one is."""
    assert _status("fd00::5", host="[fd00:0::5]:10258") == 200
    assert _status("fd00::5", host="[fd00::6]:10258") == 421


@pytest.mark.parametrize(("host", "status"), [("192.0.2.7:10258", 200), ("[2001:db8::1]", 200), ("node.example", 421)])
def test_a_wildcard_is_asked_by_address(host: str, status: int) -> None:
    """An address cannot be made to resolve to something else, a name can."""
    assert _status("0.0.0.0", host=host) == status


@pytest.mark.parametrize(
    ("site", "mode", "destination", "status"),
    [
        ("same-origin", "cors", "empty", 200),
        ("none", "navigate", "document", 200),
        ("cross-site", "navigate", "document", 200),
        ("cross-site", "no-cors", "image", 403),
        ("same-site", "no-cors", "image", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "cors", "empty", 403),
    ],
)
def test_other_sites_may_link_and_no_more(site: str, mode: str, destination: str, status: int) -> None:
    """A link that a person follows is answered, what pages load by themselves is not."""
    headers = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": destination}

    assert _status(host="localhost", **headers) == status


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:10258", False), ("127.9.9.9:1", False), ("[::1]:10258", False), ("0.0.0.0:10258", True)],
)
def test_only_loopback_is_closed(address: str, expected: bool) -> None:  # noqa: FBT001
    """Every other address is open to whoever reaches it."""
    assert is_open(address) is expected
