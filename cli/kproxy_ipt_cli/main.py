"""
The command line: a module for each command, loaded only when it is called.

Commands parse, call the library and print; nothing here knows about rules.
"""

import gc
import importlib

import click

from kproxy_ipt_cli import __version__

_COMMANDS = {
    "check": "Compare the kernel with the objects: what drifted, and whose it is.",
    "cleanup": "Remove all of our chains and jumps, and nothing else.",
    "completion": "Print the completion script of a shell.",
    "config": "Print the effective configuration.",
    "render": "Print the rules that the objects ask for; touch nothing.",
    "sync": "Bring the kernel to what the objects say.",
    "version": "Print versions of this program, of iptables and of the kernel.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed: importing all costs more than most of them do."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Names in alphabetical order."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of a command; its object is called `command`."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"kproxy_ipt_cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 drift (check), 2 usage or cannot tell, 3 objects rejected, 4 configuration, "
    "5 source, 6 missing program or kernel part, 7 privilege, 8 refused by the kernel, 9 lock.",
)
@click.version_option(__version__, prog_name="kproxy-ipt")
def cli() -> None:
    """
    Kubernetes Services as iptables rules, with or without a cluster.

    \b
    Look at the rules of some manifests:   kproxy-ipt render --from web.yaml --family ipv4
    Write them into a network namespace:   kproxy-ipt sync --once --from web.yaml --netns lab
    See whether they still stand:          kproxy-ipt check --from web.yaml --netns lab
    """


def main() -> None:
    """
    Run the command line of this process.

    A command is short and its values hold no cycles: looking for garbage in 200,000 rules is a third of its time.
    """
    gc.disable()
    cli(prog_name="kproxy-ipt")
