"""Facts about memory: what the client costs, and what each object costs, measured in a process of its own."""

import subprocess
import sys

import msgspec
import pytest

from kproxy_ipt.objects.model import EndpointSlice, Service
from kproxy_ipt.testing.api_selectors import ApiObject, fields_of
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.api_watch import StreamingLists
from kproxy_ipt.testing.objects import endpoint_slice, service, slice_endpoint

SERVICES = 5000
ENDPOINTS = 5
MIB = 1024 * 1024

PROGRAM = """
import asyncio, sys
from kproxy_ipt.objects.events import Listed
from kproxy_ipt.sources.kubeconfig import ClusterConnection
from kproxy_ipt.sources.watch import ClusterSource

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

async def main():
    kept = {}
    done = asyncio.Event()

    def deliver(event):
        if isinstance(event, Listed):
            kept[event.kind] = event.objects
            if len(kept) == 3:
                done.set()

    source = ClusterSource(ClusterConnection(master=sys.argv[1], qps=-1), "node1")
    await source.session.open()
    before = resident()
    task = asyncio.create_task(source.run(deliver))
    await done.wait()
    print(before, resident(), sum(len(objects) for objects in kept.values()))
    task.cancel()

try:
    asyncio.run(main())
except asyncio.CancelledError:
    pass
"""


def as_in_a_cluster(found: Service | EndpointSlice, kind: str, api_version: str) -> ApiObject:
    """The object with what a cluster writes into it and nobody here reads."""
    document = fields_of(msgspec.to_builtins(found))
    fields = {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {f"f:field-{n}": {} for n in range(12)}}
    metadata = fields_of(document["metadata"]) | {
        "uid": "3c7a3771-71db-42e7-b787-8237cb44a341",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": msgspec.json.encode(document).decode()},
        "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}],
    }
    return {"kind": kind, "apiVersion": api_version, **document, "metadata": metadata}


def fill(server: ApiServer) -> None:
    """Put 5,000 Services with 5 endpoints each."""
    for number in range(SERVICES):
        web = service(f"web-{number}", cluster_ip=f"10.{96 + number // 65536}.{number // 256 % 256}.{number % 256}")
        addresses = [
            slice_endpoint(f"10.{index}.{number // 256}.{number % 256}", node_name=f"node{number % 100}")
            for index in range(ENDPOINTS)
        ]
        server.put(as_in_a_cluster(web, "Service", "v1"))
        server.put(as_in_a_cluster(endpoint_slice(web, addresses), "EndpointSlice", "discovery.k8s.io/v1"))


@pytest.mark.parametrize("how", [StreamingLists.ACCEPTED, StreamingLists.REFUSED])
def test_large_cluster_fits_into_memory(how: StreamingLists, api_server: ApiServer) -> None:
    """The client alone stays below 70 MiB, 5,000 Services with 5 endpoints each add less than 40 MiB at the peak."""
    api_server.streaming_lists = how
    fill(api_server)

    command = [sys.executable, "-c", PROGRAM, api_server.url]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    before, after, count = map(int, printed.split())
    print(f"{how}: client {before / MIB:.1f} MiB, {(after - before) / count:.0f} bytes an object")  # noqa: T201

    assert count == 2 * SERVICES
    assert before < 70 * MIB
    assert after - before < 40 * MIB
