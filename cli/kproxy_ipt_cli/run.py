"""`kproxy-ipt run`."""

import asyncio
import gc
import platform
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from kproxy_ipt.config.encode import encode_config
from kproxy_ipt.config.model import Config
from kproxy_ipt.config.node import node_name
from kproxy_ipt.daemon.cleanup import clean_up
from kproxy_ipt.daemon.cluster_events import ClusterEvents
from kproxy_ipt.daemon.family_loop import Clocks
from kproxy_ipt.daemon.log import Log, Verbosity, open_log
from kproxy_ipt.daemon.machine import Target, tune_after, tune_before
from kproxy_ipt.daemon.main import run_daemon
from kproxy_ipt.daemon.metrics_pages import Process
from kproxy_ipt.daemon.settings import Settings, Source
from kproxy_ipt.daemon.tuning import tune_conntrack
from kproxy_ipt.kernel.command import DEFAULT_TIMEOUT_S
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt_cli import __version__
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import (
    every_flag_option,
    given_flags,
    read_config,
    target_of,
    target_options,
    watched_source_options,
)

KUBERNETES_VERSION = "v1.36.2"
"""What `--version` says, for programs that parse it: the kube-proxy that this one stands in for."""


@click.command(name="run", short_help="Keep the kernel in step with the cluster, or with files: the daemon.")
@click.option(
    "--compare-period",
    type=click.FloatRange(1.0, 86400.0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="From one comparison of all rules and UDP flows with the kernel to the next. Most changes by others are "
    "noticed without it: on nft at once, on legacy within a second if rules or chains came or went, else within three.",
)
@click.option(
    "--program-timeout",
    type=click.FloatRange(1.0, 3600.0),
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="A save or restore program that takes longer is killed; its sync has failed and is tried again.",
)
@watched_source_options
@target_options
@every_flag_option
@failing
def command(
    *,
    compare_period: float,
    program_timeout: float,
    paths: tuple[str, ...],
    context: str,
    netns: str | None,
    backend: Any,
    family: str,
    lock_wait: int,
    **options: tuple[str, ...],
) -> None:
    """
    Stand in for kube-proxy: watch Services, EndpointSlices and the own Node, and keep the rules in step.

    Takes kube-proxy's configuration file and flags. SIGTERM and Ctrl-C end it, and the rules stay; SIGHUP compares all
    rules with the kernel. With `--from` it watches files and folders instead of a cluster.

    With --version, --cleanup, --init-only or --write-config-to it does what these say, and ends.

    \b
    Examples:
      kproxy-ipt run --kubeconfig ~/.kube/config --hostname-override n1 --cluster-cidr 10.244.0.0/16
      kproxy-ipt run --config /var/lib/kube-proxy/config.conf --hostname-override n1
      kproxy-ipt run --from manifests/ --netns lab --hostname-override n1 -v 2
      kproxy-ipt run --cleanup
    """
    flags = given_flags(options)
    if _is_on(flags, "version"):
        click.echo(f"Kubernetes {KUBERNETES_VERSION}")
        return
    config, notes = read_config(flags)
    target = target_of(netns=netns, backend=backend, family=family, lock_wait=lock_wait)
    target = msgspec.structs.replace(target, program_timeout_s=program_timeout)
    as_json = True if config.logging.format == "json" else None
    verbosity = Verbosity(config.logging.verbosity)
    log = open_log(verbosity=verbosity, as_json=as_json)
    for note in notes:
        log.warning("configuration", note=note)
    if flags.get("write-config-to"):
        Path(flags["write-config-to"][-1]).write_text(encode_config(config), encoding="utf-8")
    elif _is_on(flags, "cleanup"):
        _clean_up(target)
    elif _is_on(flags, "init-only"):
        _make_kernel_settings(config, target, log)
    else:
        _run(config, target, log, verbosity, paths, context, flags, compare_period)


def _is_on(flags: dict[str, tuple[str, ...]], name: str) -> bool:
    return flags.get(name, ("false",))[-1].lower() in ("true", "t", "1")


def _clean_up(target: Target) -> None:
    for report in clean_up(target):
        if report.error:
            raise report.error


def _make_kernel_settings(config: Config, target: Target, log: Log) -> None:
    """What needs more rights than writing rules; an init container does it for a daemon that has fewer."""
    with inside(target.netns):
        problems = (
            *tune_conntrack(config.conntrack),
            *tune_before(config),
            *tune_after(localhost_node_ports=config.iptables.localhost_node_ports),
        )
    for problem in problems:
        log.warning("kernel setting", problem=problem)


def _run(
    config: Config,
    target: Target,
    log: Log,
    verbosity: Verbosity,
    paths: tuple[str, ...],
    context: str,
    flags: dict[str, tuple[str, ...]],
    compare_period_s: float,
) -> None:
    gc.enable()
    name = node_name(config, platform.node())
    process = Process(
        flags={flag: values[-1] for flag, values in flags.items()},
        command_line=tuple(sys.argv),
        started_ns=time.time_ns(),
        set_verbosity=verbosity.set,
    )
    settings = Settings(
        config=config, node_name=name, target=target, process=process, compare_period_s=compare_period_s
    )
    log.info("start", version=__version__, node=name, source="files" if paths else "cluster")
    source, events = _source(config, name, paths, context, flags, log)
    asyncio.run(
        run_daemon(
            settings,
            source,
            log,
            Clocks(time.monotonic, time.time),
            events=events,
            config_path=flags.get("config", ("",))[-1],
            read_config=lambda: read_config(flags)[0],
        )
    )


def _source(
    config: Config, name: str, paths: tuple[str, ...], context: str, flags: dict[str, tuple[str, ...]], log: Log
) -> tuple[Source, ClusterEvents]:
    """Where objects come from, and whom to tell about what happens to them."""
    if paths:
        from kproxy_ipt.sources.folder_watch import FolderSource

        def note(line: str) -> None:
            log.warning("files", note=line)

        return FolderSource(paths, note=note), ClusterEvents(name)
    from kproxy_ipt.sources.cluster import ClusterConnection
    from kproxy_ipt.sources.event_recorder import EventRecorder
    from kproxy_ipt.sources.watch import ClusterSource

    def failed(line: str) -> None:
        log.warning("cluster event", lost=line)

    connection = config.client_connection
    source = ClusterSource(
        ClusterConnection(
            kubeconfig=connection.kubeconfig,
            context=context,
            master=flags.get("master", ("",))[-1],
            qps=connection.qps,
            burst=connection.burst,
        ),
        name,
    )
    return source, ClusterEvents(name, EventRecorder(source.session, name, failed=failed))
