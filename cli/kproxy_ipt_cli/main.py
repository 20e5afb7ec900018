"""
The command line: a module for each command, loaded only when it is called.

Commands parse, call the library and print; nothing here knows about rules.
"""

import gc
import importlib
import io
import os
import sys
from typing import Any

import click

from kproxy_ipt_cli import __version__
from kproxy_ipt_cli._exit_codes import ExitCode

TRACEBACK_VARIABLE = "KPROXY_IPT_TRACEBACK"
"""Where it is set, a bug is shown with its traceback."""

_COMMANDS = {
    "check": "Compare the kernel with the objects: what drifted, and whose it is.",
    "cleanup": "Remove all of our chains and jumps, and nothing else.",
    "completion": "Print the completion script of a shell.",
    "config": "Print the effective configuration.",
    "conform": "Send the packets of flow tables, and compare what happens to them.",
    "diff": "Compare two rule sets by what they mean, service by service.",
    "equiv": "Find a packet that two rule sets treat differently, or show that there is none.",
    "explain": "Say what was decided about a Service, a chain or an endpoint, and why.",
    "golden": "Check expected rules and flows in files, or write them anew.",
    "graph": "Draw the way of packets through the chains of a service, or of all.",
    "lab": "Run a teaching cluster without Kubernetes, in network namespaces.",
    "lint": "Name objects that yield no rules, or risky ones, and why.",
    "list": "List virtual servers, real servers and their connections, as ipvsadm does.",
    "preflight": "Try whether this machine can do what the rules need; touch nothing.",
    "render": "Print the rules that the objects ask for; touch nothing.",
    "run": "Keep the kernel in step with the cluster, or with files: the daemon.",
    "stats": "Count connections per Service and endpoint, beside the shares of the rules.",
    "sync": "Bring the kernel to what the objects say.",
    "takeover": "List what other proxies, modes and backends left on the node; remove what is to go.",
    "trace": "Show what becomes of a packet, rule by rule.",
    "version": "Print versions of this program, of iptables and of the kernel.",
}

_MODULES = {"list": "virtual_servers"}
"""Modules of commands whose names Python needs for itself."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed: importing all costs more than most of them do."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Names in alphabetical order."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of a command; its object is called `command`."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"kproxy_ipt_cli.{_MODULES.get(cmd_name, cmd_name)}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader that went away (`| head`) is no failure of ours, and must not look like drift."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(int(ExitCode.BROKEN_PIPE)) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 drift (check), warnings (lint --strict) or less than everything (preflight), "
    "2 usage or cannot tell, 3 objects rejected, 4 configuration, 5 source, 6 missing program or kernel part, "
    "7 privilege, 8 refused by the kernel, 9 lock, 70 a bug.",
)
@click.version_option(__version__, prog_name="kproxy-ipt")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """
    Kubernetes Services as iptables rules, with or without a cluster.

    \b
    Look at the rules of some manifests:   kproxy-ipt render --from web.yaml --family ipv4
    Write them into a network namespace:   kproxy-ipt sync --once --from web.yaml --netns lab
    See whether they still stand:          kproxy-ipt check --from web.yaml --netns lab
    Take them away again:                  kproxy-ipt cleanup --netns lab
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> None:
    """
    Run the command line of this process.

    A command is short and its values hold no cycles: looking for garbage in 200,000 rules is a third of its time.
    """
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        # Names in objects are UTF-8; a terminal of another kind gets escapes, not an exception.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        # Outside of click's own mode Ctrl-C does not end in 1, which `check` uses for drift.
        code = cli.main(prog_name="kproxy-ipt", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes a message
        code = _report_bug(error)
    sys.exit(code)


def _report_bug(error: Exception) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        traceback.print_exception(error)
    click.secho(f"error: {type(error).__name__}: {error}", err=True, fg="red", bold=True)
    click.echo(
        "This is a bug in kproxy-ipt. Transactions that the kernel took stay in force, none is half-written.\n"
        f"Please report it with what {TRACEBACK_VARIABLE}=1 prints in front of the same command.",
        err=True,
    )
    return ExitCode.BUG
