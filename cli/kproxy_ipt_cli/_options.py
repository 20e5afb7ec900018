"""
Options that commands share, and what they mean together.

kube-proxy's own flags are generated from the table of `kproxy_ipt.config`, so that every command takes them in
kube-proxy's spelling; those that do not decide about rules are accepted without being shown in the help.
"""

import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from kproxy_ipt.addresses import Family, canonical_address
from kproxy_ipt.config.flag_table import FLAGS, FlagKind, FlagSpec
from kproxy_ipt.config.flags import effective_config
from kproxy_ipt.config.model import Config
from kproxy_ipt.config.node import node_name
from kproxy_ipt.daemon.log import Log, Verbosity, open_log
from kproxy_ipt.daemon.machine import BackendWish, Target
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.objects.model import Objects

# A command function as click decorates it: its parameters are the options, so no type says what they are.
Command = TypeVar("Command", bound=Callable[..., Any])

_SHOWN = frozenset(
    {
        "config",
        "hostname-override",
        "kubeconfig",
        "master",
        "cluster-cidr",
        "detect-local-mode",
        "nodeport-addresses",
        "masquerade-all",
        "dispatch",
        "balance",
        "scheduler",
    }
)
_NOT_OPTIONS = frozenset({"version", "cleanup", "init-only", "write-config-to"})
"""Flags that are commands of their own here."""

_FLAG_PREFIX = "flag_"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the shared options of one call say.

    Attributes:
        config: The effective configuration.
        config_notes: What is odd about it.
        node_name: Own node name.
        paths: From `--from`; empty means the cluster.
        context: Of the kubeconfig.
        master: Address of the API server, "" for the one of the kubeconfig.
    """

    config: Config
    config_notes: tuple[str, ...]
    node_name: str
    paths: tuple[str, ...]
    context: str
    master: str

    def read_objects(self) -> Objects:
        """
        Read all objects from where the options say.

        Raises:
            SourceError: They cannot be read.
        """
        if self.paths:
            from kproxy_ipt.sources.files import read_paths

            return read_paths(self.paths, stdin=sys.stdin.buffer)
        from kproxy_ipt.sources.cluster import ClusterConnection, read_cluster

        connection = self.config.client_connection
        return read_cluster(
            ClusterConnection(
                kubeconfig=connection.kubeconfig,
                context=self.context,
                master=self.master,
                qps=connection.qps,
                burst=connection.burst,
            ),
            node_name=self.node_name,
        )


def source_options(command: Command) -> Command:
    """`--from` and `--context`."""
    return _source_options(
        command,
        metavar="PATH|-",
        text="Read objects from a file, a folder or standard input (-) instead of the cluster. Repeatable.",
    )


def watched_source_options(command: Command) -> Command:
    """The same for a command that goes on reading."""
    return _source_options(
        command, metavar="PATH", text="Watch objects in a file or a folder instead of the cluster. Repeatable."
    )


def _source_options(command: Command, *, metavar: str, text: str) -> Command:
    for decorate in (
        click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig."),
        click.option("paths", "--from", "-f", multiple=True, metavar=metavar, help=text),
    ):
        command = decorate(command)
    return command


def flag_options(command: Command) -> Command:
    """All flags of kube-proxy that are no commands of their own here."""
    for spec in reversed(FLAGS):
        if spec.name not in _NOT_OPTIONS:
            command = _flag_option(spec, hidden=spec.name not in _SHOWN)(command)
    return command


def every_flag_option(command: Command) -> Command:
    """All flags of kube-proxy: for the command that stands in for it."""
    for spec in reversed(FLAGS):
        command = _flag_option(spec, hidden=False)(command)
    return command


def _flag_option(spec: FlagSpec, *, hidden: bool) -> Callable[[Command], Command]:
    names = ["-v", "--v"] if spec.name == "v" else [f"--{spec.name}"]
    is_bool = spec.kind is FlagKind.BOOL
    default = f" [default: {spec.default}]" if spec.default and not is_bool else ""
    return click.option(
        _parameter(spec.name),
        *names,
        multiple=True,
        is_flag=False,
        flag_value="true" if is_bool else None,
        metavar="[true|false]" if is_bool else spec.kind.name,
        hidden=hidden,
        help=spec.help + default,
    )


def _parameter(flag: str) -> str:
    return _FLAG_PREFIX + flag.replace("-", "_")


def target_options(command: Command) -> Command:
    """`--netns`, `--backend`, `--family`, `--lock-wait`."""
    for decorate in (
        click.option(
            "--lock-wait",
            type=click.IntRange(1, 3600),
            default=5,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for the xtables lock of the legacy backend.",
        ),
        family_option,
        backend_option("Where rules live; auto looks at what the kernel holds."),
        netns_option,
    ):
        command = decorate(command)
    return command


def backend_option(
    text: str = "Where live rules are; auto looks at what the kernel holds.",
) -> Callable[[Command], Command]:
    """`--backend`, with *text* as its help."""
    return click.option(
        "--backend", type=click.Choice(["auto", "nft", "legacy"]), default="auto", show_default=True, help=text
    )


def netns_option(command: Command) -> Command:
    """`--netns`."""
    return click.option(
        "--netns", metavar="NAME|PATH", help="Network namespace, as in `ip netns`, or as a path like /proc/PID/ns/net."
    )(command)


def node_address_option(command: Command) -> Command:
    """`--node-address`."""
    return click.option(
        "--node-address",
        "node_addresses",
        multiple=True,
        callback=_canonical_addresses,
        metavar="IP",
        help="Address on an interface of the node, for nodePortAddresses. Default: those of this machine. Repeatable.",
    )(command)


def _canonical_addresses(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    found = {text: canonical_address(text) for text in texts}
    for text, address in found.items():
        if address is None:
            raise click.BadParameter(f"{text!r} is not an IP address")
    return tuple(address for address in found.values() if address)


def interface_addresses_of(
    config: Config, given: tuple[str, ...], netns: str | None, *, needed: bool = False
) -> tuple[str, ...]:
    """The addresses of `--node-address`, else those of the machine where restricted node ports or rules need them."""
    if given or not (config.node_port_addresses or needed):
        return given
    from kproxy_ipt.kernel.addresses import interface_addresses
    from kproxy_ipt.kernel.netns import inside

    with inside(netns):
        return interface_addresses()


def family_option(command: Command) -> Command:
    """`--family`."""
    return click.option(
        "--family",
        type=click.Choice([*(family.value for family in Family), "both"]),
        default="both",
        show_default=True,
        help="IP family to work on.",
    )(command)


def output_option(command: Command) -> Command:
    """`--output`."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(["text", "json", "yaml"]),
        default="text",
        show_default=True,
        help="text for people; json and yaml print one object.",
    )(command)


def families_of(family: str) -> tuple[Family, ...]:
    """The families that `--family` names."""
    return tuple(Family) if family == "both" else (Family(family),)


def target_of(*, netns: str | None, backend: BackendWish, family: str, lock_wait: int) -> Target:
    """The target that the options name."""
    return Target(netns=netns, backend=backend, families=families_of(family), lock_wait_s=lock_wait)


def request_of(paths: tuple[str, ...], context: str, options: Mapping[str, tuple[str, ...]]) -> Request:
    """
    The request that source options and kube-proxy's flags make.

    Raises:
        ConfigError: File or flags are wrong; every problem is named.
    """
    flags = given_flags(options)
    effective, notes = read_config(flags)
    return Request(
        config=effective,
        config_notes=notes,
        node_name=node_name(effective, platform.node()),
        paths=paths,
        context=context,
        master=flags.get("master", ("",))[-1],
    )


def log_of(config: Config) -> Log | None:
    """The log that `-v` and `--logging-format` ask for; None for silence."""
    if config.logging.verbosity <= 0:
        return None
    verbosity = Verbosity(config.logging.verbosity)
    return open_log(verbosity=verbosity, as_json=True if config.logging.format == "json" else None)


def given_flags(options: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Flags of kube-proxy among the parameters of a command, by name, without those that were not given."""
    return {spec.name: options[_parameter(spec.name)] for spec in FLAGS if options.get(_parameter(spec.name))}


def read_config(flags: Mapping[str, tuple[str, ...]]) -> tuple[Config, tuple[str, ...]]:
    """
    The effective configuration of *flags* and of the file that `--config` names, and notes about it.

    An address of the API server that stands on the command line counts more than one in a configuration file: who types
    it means it. (kube-proxy ignores `--kubeconfig` beside `--config`.)

    Raises:
        ConfigError: File or flags are wrong; every problem is named.
    """
    path = flags.get("config", ("",))[-1]
    try:
        content = Path(path).read_bytes() if path else None
    except OSError as error:
        raise ConfigError((f"--config {path}: {error.strerror or error}",)) from error
    decoded = effective_config(content, path, flags)
    kubeconfig = flags.get("kubeconfig", ("",))[-1]
    if not kubeconfig:
        return decoded.config, decoded.notes
    connection = msgspec.structs.replace(decoded.config.client_connection, kubeconfig=kubeconfig)
    notes = tuple(note for note in decoded.notes if "--kubeconfig" not in note)
    return msgspec.structs.replace(decoded.config, client_connection=connection), notes
