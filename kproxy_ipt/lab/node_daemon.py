"""One `kproxy-ipt run`: started, started again when it ends, stopped."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from kproxy_ipt.lab.layout import CLUSTER_CIDRS, LabNode, Layout
from kproxy_ipt.testing.daemon_process import kproxy_ipt_program

_LOG = logging.getLogger(__name__)
_PAUSE_S = 2.0
_STOP_S = 5.0


def proxy_config_text(cluster_cidrs: Iterable[str] = CLUSTER_CIDRS.values()) -> str:
    """The KubeProxyConfiguration of a node; its kproxy-ipt follows whoever changes the file."""
    return (
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"
        "kind: KubeProxyConfiguration\n"
        f"clusterCIDR: {','.join(cluster_cidrs)}\n"
        "iptables:\n"
        "  minSyncPeriod: 0s\n"
        "conntrack:\n"
        "  maxPerCore: 0  # the size of the table is that of the whole machine\n"
    )


def daemon_command(layout: Layout, node: LabNode, backend: str) -> Sequence[str]:
    """The command line of the kproxy-ipt of a node."""
    return (
        kproxy_ipt_program(),
        "run",
        "--kubeconfig",
        str(layout.kubeconfig),
        "--netns",
        layout.netns(node.name),
        "--hostname-override",
        node.name,
        "--config",
        str(layout.proxy_config(node.name)),
        "--backend",
        backend,
    )


async def run_node_daemon(layout: Layout, node: LabNode, backend: str) -> None:
    """Keep the kproxy-ipt of a node running until cancelled; its log goes to a file."""
    layout.proxy_config(node.name).write_text(proxy_config_text(), encoding="utf-8")
    while True:
        with layout.log(node.name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *daemon_command(layout, node, backend), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            code = await process.wait()
        finally:
            await _stop(process)
        _LOG.warning("kproxy-ipt of %s ended with %s and is started again; its log: %s", node.name, code, log.name)
        await asyncio.sleep(_PAUSE_S)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
