"""Events of the sources become state, and what is odd about them is told."""

import time

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.inputs import Inputs
from kproxy_ipt.daemon.log import Verbosity, open_log
from kproxy_ipt.daemon.metrics import Metrics
from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.events import Contact, Kind

_CUT_OFF = Finding(
    object="web.yaml", field="", found="half a file", expected="YAML", consequence="ignored", severity=Severity.REJECTED
)


def _inputs() -> Inputs:
    """For one family and nobody who listens, with a log on the standard error of now."""
    return Inputs(
        (Family.IPV4,),
        "n1",
        clock=time.monotonic,
        started_unix_s=0.0,
        metrics=Metrics(oldest_unwritten_s=dict, api_silence_s=dict, nfacct_counters=dict),
        api_status=ApiStatus(Kind, clock=time.monotonic, wall_clock_ns=time.time_ns),
        log=open_log(verbosity=Verbosity(0)),
        on_dirty=lambda _: None,
        on_node=lambda _: None,
    )


def test_what_belongs_to_no_object_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is cut off changes no object; that it is odd comes with a sign of life, and is said one time."""
    inputs = _inputs()
    for _ in range(2):
        inputs.deliver(Contact(Kind.SERVICES, (_CUT_OFF,)))

    assert 1 == capsys.readouterr().err.count("half a file")
