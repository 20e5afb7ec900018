"""`list` from the command line: the layout of ipvsadm, from rules alone."""

import json
import subprocess
from collections.abc import Callable

import pytest
from click.testing import Result

from kproxy_ipt.kernel.netns import inside

pytestmark = pytest.mark.kernel

Invoke = Callable[..., Result]

_WEB = """\
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.96.0.80:80 random (demo/web:http)
  -> 10.244.1.13:8080             Masq    1      0          0
  -> 10.244.1.14:8080             Masq    1      0          0
  -> 10.244.2.21:8080             Masq    1      0          0
"""


@pytest.fixture
def live(invoke: Invoke, lab: tuple[str, ...], netns: str) -> tuple[str, ...]:
    """Options that name the namespace, in which the examples stand."""
    ran = invoke("sync", "--once", *lab)
    assert ran.exit_code == 0, ran.output
    return ("--netns", netns, "--backend", "nft")


def test_layout_is_that_of_ipvsadm(invoke: Invoke, live: tuple[str, ...]) -> None:
    """Columns stand where people and scripts look for them."""
    ran = invoke("list", "demo/web", "--family", "ipv4", *live)

    assert (_WEB, 0) == (ran.stdout, ran.exit_code)


def test_flags_of_a_virtual_server_are_told(invoke: Invoke, live: tuple[str, ...]) -> None:
    """Affinity as `persistent`; what only local endpoints serve as `local`; no endpoints, no scheduler."""
    lines = invoke("list", *live).stdout.splitlines()

    assert "TCP  10.96.0.83:80 random persistent 10800 (demo/sticky:http)" in lines
    assert any(line.startswith("TCP  [fd00:10:96::80]:80 random") for line in lines)
    assert any(" local (demo/web-local:http)" in line for line in lines)


def test_session_to_an_endpoint_without_a_rule_comes_last(invoke: Invoke, live: tuple[str, ...], netns: str) -> None:
    """Under a heading of its own, with weight 0."""
    record = (
        "-I -s 10.244.1.9 -d 10.96.0.80 -r 10.244.9.9 -q 10.244.1.9 -p tcp --sport 4000 --dport 80 "
        "--reply-port-src 8080 --reply-port-dst 4000 -t 600 --state ESTABLISHED -u ASSURED"
    )
    with inside(netns):
        subprocess.run(["conntrack", *record.split()], check=True, capture_output=True)
    printed = invoke("list", "web", *live).stdout

    assert printed.endswith(
        "\nConnections to endpoints that rules do not lead to any more:\n"
        "TCP  10.96.0.80:80 (demo/web:http)\n"
        "  -> 10.244.9.9:8080              Masq    0      1          0\n"
    )


def test_document_has_a_server_for_each_address(invoke: Invoke, live: tuple[str, ...]) -> None:
    """With shares as numbers."""
    document = json.loads(invoke("list", "svc/demo/web:http", "-o", "json", *live).stdout)
    first = document["servers"][0]

    assert ("list", "nft", {}) == (document["command"], document["backend"], document["problems"])
    assert {"10.96.0.80", "fd00:10:96::80"} == {one["address"] for one in document["servers"]}
    assert [1 / 3] * 3 == [pytest.approx(one["share"]) for one in first["real_servers"]]


@pytest.mark.kernel
@pytest.mark.parametrize("command", ["list", "stats"])
def test_kernel_without_rules_is_told(invoke: Invoke, netns: str, command: str) -> None:
    """The whole list is empty for a reason, and one Service is not to blame."""
    whole, one = (invoke(command, *words, "--netns", netns, "--backend", "nft") for words in ((), ("demo/web",)))

    assert (0, 2) == (whole.exit_code, one.exit_code)
    assert "note: the kernel has no rule of any Service" in whole.stderr
    assert "Error: the kernel has no rule of any Service" in one.stderr


@pytest.mark.parametrize("command", ["list", "stats"])
def test_service_that_no_rule_names_is_an_error(invoke: Invoke, live: tuple[str, ...], command: str) -> None:
    """An empty answer would look like a Service without connections."""
    ran = invoke(command, "demo/nobody", *live)

    assert 2 == ran.exit_code
    assert "no rule names a Service 'demo/nobody'" in ran.output
