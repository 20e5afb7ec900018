"""Entering network namespaces by name and path, and coming back."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from kproxy_ipt.errors import NamespaceError
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.netns import current_namespace_id, inside
from kproxy_ipt.testing.namespaces import create_namespace, remove_namespace, temporary_namespace

pytestmark = pytest.mark.kernel


def test_body_is_elsewhere_and_the_thread_comes_back() -> None:
    """Inside, the namespace is another one; afterwards it is the one of before, after an error too."""
    home = current_namespace_id()
    seen = []
    with temporary_namespace() as name:
        with suppress(ZeroDivisionError), inside(name):
            seen.append(current_namespace_id())
            raise ZeroDivisionError

        assert current_namespace_id() == home
    assert seen != [home]


def test_none_means_stay() -> None:
    """Without a target nothing is entered."""
    home = current_namespace_id()
    with inside(None):
        assert current_namespace_id() == home


def test_path_and_name_lead_to_the_same_namespace() -> None:
    """`/run/netns/NAME` and NAME are the same place."""
    with temporary_namespace() as name:
        with inside(name):
            by_name = current_namespace_id()
        with inside(f"/run/netns/{name}"):
            by_path = current_namespace_id()

    assert by_name == by_path


def test_namespace_of_a_process_is_entered_by_its_path() -> None:
    """`/proc/PID/ns/net` needs no name at all."""
    with temporary_namespace() as name, inside(name), subprocess.Popen(["sleep", "60"]) as process:
        there = current_namespace_id()
        try:
            with temporary_namespace() as other, inside(other), inside(f"/proc/{process.pid}/ns/net"):
                found = current_namespace_id()
        finally:
            process.kill()

    assert found == there


def test_programs_started_inside_inherit_the_namespace() -> None:
    """Run or started, a program sees the namespace of the thread that starts it."""
    runner = SubprocessRunner()
    with temporary_namespace() as name, inside(name):
        here = current_namespace_id()
        ran = runner.run(["readlink", "/proc/self/ns/net"]).stdout.strip()
        started = runner.start(["readlink", "/proc/self/ns/net"]).wait().stdout.strip()

    assert (ran, started) == (here, here)


def test_other_threads_stay_where_they_are() -> None:
    """A namespace belongs to a thread; one that was there before is not taken along."""
    seen: list[str] = []
    entered = threading.Event()
    home = current_namespace_id()

    def look() -> None:
        entered.wait(10)
        seen.append(current_namespace_id())

    thread = threading.Thread(target=look)
    thread.start()
    with temporary_namespace() as name, inside(name):
        entered.set()
        thread.join()

    assert seen == [home]


def test_unknown_name_is_told_with_its_path() -> None:
    """The error says what was looked for and where."""
    with (
        pytest.raises(NamespaceError, match=r"no network namespace kpt-nobody \(/run/netns/kpt-nobody"),
        inside("kpt-nobody"),
    ):
        pytest.fail("must not be entered")


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/ns/uts", "/tmp/"])
def test_what_is_no_network_namespace_is_told(path: str) -> None:
    """A file, a folder and a namespace of another kind cannot be entered."""
    with pytest.raises(NamespaceError, match="is not a network namespace"), inside(path):
        pytest.fail("must not be entered")


def test_missing_privilege_is_told() -> None:
    """Without CAP_SYS_ADMIN the error says what is needed."""
    code = (
        "from kproxy_ipt.kernel.netns import inside\n"
        "try:\n with inside('/proc/self/ns/net'): print('entered')\nexcept Exception as e: print(type(e).__name__, e)"
    )
    program = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", code]
    root = str(Path(__file__).parents[2])
    completed = SubprocessRunner().run(["env", f"PYTHONPATH={root}", *program])

    assert completed.stdout.startswith("NamespaceError")
    assert "CAP_SYS_ADMIN" in completed.stdout


def test_created_namespace_is_gone_after_removal() -> None:
    """A removed name cannot be entered or removed again."""
    name = create_namespace("gone")
    remove_namespace(name)

    with pytest.raises(NamespaceError, match=name):
        remove_namespace(name)
