"""
The process in the background that is a lab: `python -m kproxy_ipt.lab.supervisor FOLDER PORT BACKEND [empty]`.

Started by `lifecycle.up`, which has made the folder; ended by SIGTERM, when it stops what it started. Namespaces are
left to `lifecycle.down`, which removes them after the end of any supervisor, violent ones too.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from kproxy_ipt.errors import KproxyError
from kproxy_ipt.lab import network
from kproxy_ipt.lab.api import LabApi, listening_socket
from kproxy_ipt.lab.cluster import Cluster
from kproxy_ipt.lab.control import Control
from kproxy_ipt.lab.demo import fill
from kproxy_ipt.lab.layout import NODES, Layout, layout_of
from kproxy_ipt.lab.node_daemon import run_node_daemon
from kproxy_ipt.lab.state import LabState, write_state

_LOG = logging.getLogger(__name__)


def kubeconfig_text(name: str, url: str) -> str:
    """A kubeconfig for the API of a lab."""
    return (
        "apiVersion: v1\n"
        "kind: Config\n"
        f"clusters: [{{name: {name}, cluster: {{server: '{url}'}}}}]\n"
        f"contexts: [{{name: {name}, context: {{cluster: {name}, user: {name}}}}}]\n"
        f"users: [{{name: {name}, user: {{}}}}]\n"
        f"current-context: {name}\n"
    )


async def serve(layout: Layout, port: int, backend: str, *, with_web: bool) -> None:
    """
    Be the lab until SIGTERM.

    Raises:
        KernelError: A namespace cannot be made, or the port of the API is taken.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    listening = listening_socket(port)
    network.build(layout)
    cluster = Cluster()
    control = Control(cluster, layout)
    fill(cluster, with_web=with_web)
    state = LabState(session=os.getpid(), port=int(listening.getsockname()[1]))
    layout.kubeconfig.write_text(kubeconfig_text(layout.name, state.url), encoding="utf-8")
    layout.kubeconfig.chmod(0o644)
    async with LabApi(cluster).serving(listening):
        write_state(layout, state)
        _LOG.info("the API listens on %s", state.url)
        tasks = [asyncio.create_task(control.run())]
        tasks += [asyncio.create_task(run_node_daemon(layout, node, backend)) for node in NODES]
        waiting = asyncio.create_task(stopping.wait())
        done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, *tasks):
            task.cancel()
        await asyncio.gather(waiting, *tasks, return_exceptions=True)
        for task in done:
            task.result()


def main(arguments: list[str]) -> int:
    """
    Run a lab.

    Returns:
        0 after SIGTERM, 1 after an error, which stands in the state of the lab.
    """
    folder, port, backend, *rest = arguments
    layout = layout_of(Path(folder).name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(serve(layout, int(port), backend, with_web="empty" not in rest))
    except (KproxyError, OSError) as error:
        _LOG.error("%s", error)
        write_state(layout, LabState(session=os.getpid(), error=str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
