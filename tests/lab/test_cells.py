"""What `kubectl get` prints of each kind."""

from datetime import UTC, datetime, timedelta

import pytest

from kproxy_ipt.lab.cells import COLUMNS, TIME_FORMAT, age, cells_of
from kproxy_ipt.lab.documents import ApiObject


def _ago(**duration: float) -> str:
    return (datetime.now(tz=UTC) - timedelta(**duration)).strftime(TIME_FORMAT)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"kind": "Service", "spec": {"type": "LoadBalancer"}}, ["LoadBalancer", "<none>", "<pending>", "<none>"]),
        (
            {"kind": "Service", "spec": {"type": "ExternalName", "externalName": "a.b"}},
            ["ExternalName", "<none>", "a.b"],
        ),
        ({"kind": "Service", "spec": {"externalIPs": ["192.0.2.1"]}}, ["", "<none>", "192.0.2.1"]),
        ({"kind": "Pod", "metadata": {"deletionTimestamp": "x"}, "spec": {"containers": [{}]}}, ["0/1", "Terminating"]),
        ({"kind": "Pod"}, ["0/0", "Pending"]),
        ({"kind": "Deployment", "spec": {"replicas": 3}, "status": {"readyReplicas": 2}}, ["2/3", 0, 0]),
        ({"kind": "Node", "status": {"conditions": [{"type": "Ready", "status": "False"}]}}, ["NotReady", "<none>"]),
        ({"kind": "EndpointSlice", "addressType": "IPv4"}, ["IPv4", "<unset>", "<unset>"]),
        (
            {"kind": "EndpointSlice", "ports": [{}], "endpoints": [{"addresses": ["a"]}] * 5},
            ["", "*", "a,a,a + 2 more..."],
        ),
        ({"kind": "Endpoints", "subsets": [{"addresses": [{"ip": "a"}], "ports": [{"port": 1}]}]}, ["a:1"]),
        ({"kind": "Namespace", "status": {"phase": "Active"}}, ["Active"]),
        ({"kind": "ReplicaSet"}, [0, 0, 0]),
        ({"kind": "Event", "type": "Normal", "reason": "Odd"}, ["Normal", "Odd"]),
    ],
)
def test_cells_say_what_the_columns_promise(document: ApiObject, expected: list[object]) -> None:
    """As many cells as columns; those behind the first one, which is the name or a time."""
    cells = cells_of(document)

    assert len(cells) == len(COLUMNS[str(document["kind"])])
    assert list(cells[1 : 1 + len(expected)]) == expected


def test_ages_are_short() -> None:
    """In the largest unit of which two have passed; what is no time is unknown."""
    times = [_ago(seconds=5), _ago(seconds=100), _ago(minutes=5), _ago(hours=5), _ago(days=3), "never"]

    assert [age(each) for each in times] == ["5s", "100s", "5m", "5h", "3d", "<unknown>"]
