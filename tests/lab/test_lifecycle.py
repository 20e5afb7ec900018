"""A lab begins, is left alone, dies, and ends, and nothing of it stays."""

import os
import signal
import socket
import subprocess

import msgspec
import pytest

from kproxy_ipt.lab.state import read_state
from kproxy_ipt.testing.daemon_process import wait_until

from .conftest import RunningLab

pytestmark = pytest.mark.kernel


def test_down_leaves_nothing(unborn_lab: RunningLab) -> None:
    """Namespaces, processes and files are there while the lab is up, and gone afterwards."""
    unborn_lab.up()
    # Programs that the daemons start come and go.
    wait_until(lambda: len(unborn_lab.processes()) == 3, "the supervisor and two daemons alone")
    there = (unborn_lab.namespaces(), unborn_lab.layout.folder.exists())
    name = unborn_lab.layout.name
    expected = [f"{name}-{label}" for label in ("client", "n1", "n2", "web-1", "web-2", "web-3", "wire")]

    done = unborn_lab.run("down")

    assert there == (expected, True)
    assert (done.returncode, done.stdout) == (0, f"lab {name} is removed\n")
    assert (unborn_lab.namespaces(), unborn_lab.processes()) == ([], [])
    assert not unborn_lab.layout.folder.exists()


def test_a_second_up_changes_nothing(unborn_lab: RunningLab) -> None:
    """The same processes go on, and the command says so."""
    unborn_lab.up()
    before = read_state(unborn_lab.layout)

    done = unborn_lab.up()

    assert "is up already" in done.stdout
    assert read_state(unborn_lab.layout) == before


def test_up_replaces_a_lab_whose_supervisor_was_killed(unborn_lab: RunningLab) -> None:
    """After `kill -9` its daemons and namespaces are still there; `up` removes them and starts anew."""
    unborn_lab.up("--empty")
    state = read_state(unborn_lab.layout)
    assert state is not None
    os.kill(state.session, signal.SIGKILL)
    wait_until(lambda: len(unborn_lab.processes()) == 2, "the supervisor is gone")
    status = unborn_lab.run("status")

    done = unborn_lab.up()

    assert status.returncode == 5
    assert "is dead" in status.stderr
    assert "removed what a dead lab" in done.stdout
    assert sum(unborn_lab.answers("web").values()) == 10
    wait_until(lambda: len(unborn_lab.processes()) == 3, "the supervisor and two daemons alone")


def test_down_removes_what_a_killed_supervisor_left(unborn_lab: RunningLab) -> None:
    """Daemons that lost their supervisor end as well."""
    unborn_lab.up("--empty")
    state = read_state(unborn_lab.layout)
    assert state is not None
    os.kill(state.session, signal.SIGKILL)

    done = unborn_lab.run("down")

    assert done.returncode == 0
    assert (unborn_lab.namespaces(), unborn_lab.processes()) == ([], [])


def test_a_port_that_is_taken_is_named(unborn_lab: RunningLab) -> None:
    """`up` fails with the port in its message, and leaves nothing."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        done = unborn_lab.run("up", "--port", str(port))

    assert done.returncode == 8
    assert f"the API cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr
    assert not unborn_lab.layout.folder.exists()


def test_a_namespace_of_somebody_else_is_not_touched(unborn_lab: RunningLab) -> None:
    """`up` fails where a namespace has a name that it needs, and that namespace stays."""
    foreign = f"{unborn_lab.layout.name}-n1"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        done = unborn_lab.run("up", "--port", "0")

        assert f"the network namespace {foreign} is there already" in done.stderr
        assert unborn_lab.namespaces() == [foreign]
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)


def test_commands_without_a_lab_say_how_to_make_one(unborn_lab: RunningLab) -> None:
    """`status` and `curl` fail; `down` has nothing to do."""
    status, asked, down = (unborn_lab.run(*words) for words in (("status",), ("curl", "web"), ("down",)))

    assert (status.returncode, asked.returncode, down.returncode) == (5, 5, 0)
    assert "kproxy-ipt lab up makes one" in status.stderr
    assert "there is no lab" in down.stdout


def test_status_as_json_names_everything(unborn_lab: RunningLab) -> None:
    """Nodes with healthy proxies, pods with their namespaces, Services with counted endpoints."""
    unborn_lab.up("--backend", "legacy")

    shown = msgspec.json.decode(unborn_lab.run("status", "--output", "json").stdout)["lab"]

    assert [(node["name"], node["proxy"]) for node in shown["nodes"]] == [("n1", "healthy"), ("n2", "healthy")]
    assert [pod["netns"] for pod in shown["pods"]] == [f"{unborn_lab.layout.name}-web-{n}" for n in (1, 2, 3)]
    assert [(each["name"], each["ready"], each["endpoints"]) for each in shown["services"]] == [("web", 3, 3)]
