"""Every fault of `lab break` is real: it shows, the judge says no, its written cure and `lab fix` both heal it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kproxy_ipt.errors import ConfigError
from kproxy_ipt.lab.breaking import EXPECTED, break_lab, check_lab, fix_lab, read_record
from kproxy_ipt.lab.fault_texts import FAULT_TEXTS, Language
from kproxy_ipt.lab.faults import FAULTS
from kproxy_ipt.lab.judge import Expectation, judge

from .conftest import RunningLab

pytestmark = pytest.mark.kernel
_COMMAND = re.compile(r"kproxy-ipt (?:trace|check|explain|lint)(?: svc/[\w/]+)?(?: --[\w-]+ [\w./-]+)+")
_SHOWS = {
    "wrong-selector": "requests refused",
    "not-ready": "requests refused",
    "wrong-target-port": "requests refused",
    "flushed-table": "client to http://192.0.2.10:32080/: 16 of 16 requests refused",
    "local-without-pods": "client to http://192.0.2.10:32080/: 16 of 16 requests without an answer",
    "other-cidr": "instead of its own address",
    "stale-conntrack": "client to udp://192.0.2.10:32007 from port 40000: no answer",
    "foreign-firewall": "client to http://192.0.2.10:32080/: ",
    "source-ranges": "client to http://203.0.113.10:80/: 16 of 16 requests without an answer",
    "frozen-daemon": "client to http://192.0.2.20:32080/: 16 of 16 requests without an answer",
}


def _shell(lab: RunningLab, commands: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
    environment = {"PATH": path, "HOME": str(lab.layout.folder), "KUBECONFIG": str(lab.layout.kubeconfig)}
    done = subprocess.run(["bash", "-euc", commands], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_shows_and_its_written_cure_heals_it(lab: RunningLab, name: str) -> None:
    """`check` says no with the symptom, then yes after the commands of the cure; `fix` gives back the lab of before."""
    kept = break_lab(lab.layout, name, None).kept

    broken = [each.en for each in check_lab(lab.layout).symptoms]
    _shell(lab, FAULT_TEXTS[name].cure_in(lab.layout))
    # Source ports that the fault lost stay tracked for a while, and roll-outs and files take their time.
    cured = [each.en for each in judge(lab.layout, EXPECTED.get(name, Expectation()), patience_s=60.0)]
    checked = check_lab(lab.layout)
    fix_lab(lab.layout)

    assert [each for each in broken if _SHOWS[name] in each] != [], broken
    assert (cured, checked.record is not None) == ([], True)
    assert read_record(lab.layout) is None
    specs = [document["spec"] for document in kept]
    found = msgspec.json.decode(lab.kubectl("get", "deployment/web", "service/web", "-o", "json"))
    assert [document["spec"] for document in found["items"]] == specs


@pytest.mark.parametrize("name", ["flushed-table", "stale-conntrack"])
def test_fix_heals_a_fault_that_nobody_found(lab: RunningLab, name: str) -> None:
    """Without any cure, `fix` leaves a healthy lab, which it has judged itself."""
    break_lab(lab.layout, name, None)

    fixed = fix_lab(lab.layout)

    assert fixed is not None
    assert fixed.name == name


def test_there_are_ten_faults_with_words_in_both_languages() -> None:
    """Each fault has a text, and each text is there in French too, and is another one unless it is a command."""
    assert sorted(FAULTS) == sorted(FAULT_TEXTS)
    assert len(FAULTS) == 10
    for fault in FAULT_TEXTS.values():
        assert len(fault.hints) == 3
        for words in (fault.title, fault.symptom, fault.cause):
            assert words.fr not in ("", words.en)


@pytest.mark.parametrize("language", ["en", "fr"])
def test_commands_of_hints_run(lab: RunningLab, language: Language) -> None:
    """Every command of ours in a hint or in a sentence of it is one that the program takes."""
    hints = [hint.spoken(language, lab.layout) for text in FAULT_TEXTS.values() for hint in text.hints]
    commands = {
        found[0].replace("ADDRESS", "10.96.0.10").replace("ADRESSE", "10.96.0.10")
        for hint in hints
        for found in _COMMAND.finditer(hint)
    }

    assert len(commands) > 5
    for command in sorted(commands):
        _shell(lab, command)


def test_an_unnamed_fault_is_found_by_hints(lab: RunningLab) -> None:
    """Chance chooses by the seed and tells no name; each `--hint` tells one more; a second `break` is refused."""
    broken = lab.run("break", "--seed", "5", "--language", "en")
    again = lab.run("break")
    first, second = (lab.run("check", "--hint", "--language", "en") for _ in range(2))
    fixed = lab.run("fix", "--language", "fr")

    record_name = next(name for name, text in FAULT_TEXTS.items() if text.title.fr in fixed.stdout)
    assert broken.returncode == 0, broken.stderr
    assert FAULT_TEXTS[record_name].symptom.en in broken.stdout
    assert record_name not in broken.stdout
    assert (again.returncode, "is broken already" in again.stderr) == (4, True)
    assert (first.returncode, first.stdout.count("hint ")) == (1, 1)
    assert (second.returncode, second.stdout.count("hint ")) == (1, 2)
    assert (fixed.returncode, fixed.stdout.splitlines()[-1]) == (0, "le labo est comme avant")


def test_a_service_that_was_deleted_is_made_again(lab: RunningLab) -> None:
    """Whatever a student did meanwhile, `fix` puts the objects back."""
    break_lab(lab.layout, "wrong-selector", None)
    lab.kubectl("delete", "svc/web")
    missing = [each.en for each in judge(lab.layout, Expectation(), patience_s=0)]

    fix_lab(lab.layout)

    assert missing == ["there is no Service web"]
    assert sum(lab.answers("web").values()) == 10


def test_objects_of_the_user_stay(lab: RunningLab) -> None:
    """What a fault makes goes with it; what only looks like it was there before and stays."""
    lab.kubectl("create", "namespace", "mine")
    lab.kubectl("create", "service", "clusterip", "statsd", "--tcp=8125", "-n", "mine")
    lab.kubectl("create", "service", "clusterip", "echo", "--tcp=7")

    break_lab(lab.layout, "stale-conntrack", None)
    fix_lab(lab.layout)

    found = lab.kubectl("get", "svc,deployments", "-A", "-o", "name").split()
    assert found == ["service/echo", "service/web", "service/statsd", "deployment.apps/web"]


def test_an_unknown_fault_is_refused(lab: RunningLab) -> None:
    """The message says where the names are."""
    with pytest.raises(ConfigError, match="lab break --list"):
        break_lab(lab.layout, "nonsense", None)


def test_a_lab_without_web_cannot_be_broken(unborn_lab: RunningLab) -> None:
    """`up --empty` has nothing that could be broken, and stays as it is."""
    unborn_lab.up("--empty")

    done = unborn_lab.run("break", "not-ready")

    assert (done.returncode, "no Deployment and Service web to break" in done.stderr) == (4, True)


def test_down_ends_a_daemon_that_is_stopped(unborn_lab: RunningLab) -> None:
    """A lab whose kproxy-ipt hangs is removed like any other."""
    unborn_lab.up()
    break_lab(unborn_lab.layout, "flushed-table", None)

    done = unborn_lab.run("down")

    assert done.returncode == 0, done.stderr
    assert (unborn_lab.namespaces(), unborn_lab.processes()) == ([], [])
