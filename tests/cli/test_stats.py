"""`stats` from the command line: counts beside shares, once and again and again."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from kproxy_ipt_cli._service_names import is_named

Invoke = Callable[..., Result]

_WEB = """\
demo/web:http IPv4 tcp
150 connections, 0 rejected, 0 dropped
shares: connections do not fit the shares, and no rule says why (by chance alone: less than 0.1 %)
endpoint           share  local  observed  since change  connections
10.244.1.13:8080  33.3 %  -        70.0 %           105          150
10.244.1.14:8080  33.3 %  -        20.0 %            30            0
10.244.2.21:8080  33.3 %  -        10.0 %            15            0

"""


@pytest.mark.kernel
def test_counts_stand_beside_shares(invoke: Invoke, counted: tuple[str, ...]) -> None:
    """The share is what each endpoint is to get, whatever the probability of its rule says."""
    assert _WEB == invoke("stats", "demo/web:http", "--family", "ipv4", *counted).stdout


@pytest.mark.kernel
def test_overview_has_a_line_for_each_service_port(invoke: Invoke, counted: tuple[str, ...]) -> None:
    """With what was counted in all."""
    lines = [line.split() for line in invoke("stats", *counted).stdout.splitlines()]

    assert ["demo/web:http", "tcp", "ipv4", "3", "150", "0", "0", "unexplained"] in lines
    assert ["demo/web:http", "tcp", "ipv6", "3", "0", "0", "0", "too", "few"] in lines


@pytest.mark.kernel
def test_document_holds_every_number(invoke: Invoke, counted: tuple[str, ...]) -> None:
    """As documented."""
    document = json.loads(invoke("stats", "web", "--family", "ipv4", "-o", "json", *counted).stdout)
    (found,) = (one for one in document["services"] if one["service_port"] == "demo/web:http")

    assert ("stats", 0) == (document["command"], document["invalid_dropped"])
    assert (150, "unexplained", 0.7) == (found["connections"], found["skew"], found["endpoints"][0]["observed"])


@pytest.mark.kernel
@pytest.mark.parametrize("service", ["", "demo/web"])
def test_watch_shows_rates_and_ends_after_its_rounds(invoke: Invoke, counted: tuple[str, ...], service: str) -> None:
    """Nothing came between the two looks."""
    named = (service,) if service else ()
    ran = invoke("stats", *named, "--watch", "--rounds", 2, "--interval", 0.1, "--family", "ipv4", *counted)

    assert 0 == ran.exit_code
    assert "per second" in ran.stdout
    assert "150" in ran.stdout


@pytest.mark.kernel
def test_watch_prints_documents(invoke: Invoke, counted: tuple[str, ...]) -> None:
    """A document for each look."""
    ran = invoke("stats", "web", "-w", "--rounds", 2, "--interval", 0.1, "--family", "ipv4", "-o", "json", *counted)
    documents = [json.loads(text) for text in ran.stdout.replace("}\n{", "}\0{").split("\0")]

    assert [150, 150] == [document["services"][0]["connections"] for document in documents]


@pytest.mark.parametrize(
    ("wanted", "service_port", "expected"),
    [
        ("", "demo/web:http", True),
        ("web", "demo/web:http", True),
        ("demo/web", "demo/web:http", True),
        ("svc/demo/web:http", "demo/web:http", True),
        ("demo/web:https", "demo/web:http", False),
        ("other/web", "demo/web:http", False),
        ("web", "demo/webhook:http", False),
        ("web:", "demo/web", True),
    ],
)
def test_names_mean_what_people_write(wanted: str, service_port: str, *, expected: bool) -> None:
    """Namespace and port may be left out."""
    assert expected is is_named(wanted, service_port)
