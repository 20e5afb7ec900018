"""`kproxy-ipt version`."""

import platform

import click

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.programs import installed_programs
from kproxy_ipt_cli import __version__
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import output_option
from kproxy_ipt_cli._output import TEXT, plain, print_document, print_table


@click.command(name="version", short_help="Print versions of this program, of iptables and of the kernel.")
@output_option
@failing
def command(*, output: str) -> None:
    """
    Print versions, and which iptables programs there are.

    \b
    Example:
      kproxy-ipt version --output json
    """
    installed = installed_programs(SubprocessRunner(), tuple(Family))
    programs = [found for one in installed.values() for found in one.programs.values()]
    parts = {"kproxy-ipt": __version__, "python": platform.python_version(), "kernel": platform.release()}
    if output != TEXT:
        found = [
            {
                "family": str(one.family),
                "backend": str(one.backend),
                "program": " ".join(one.command),
                "version": one.version_text,
            }
            for one in programs
        ]
        print_document({**parts, "iptables": plain(found)}, output)
        return
    rows = list(parts.items())
    rows.extend((f"{one.family} {one.backend}", one.version_text) for one in programs)
    print_table(("part", "version"), rows)
    if not programs:
        click.echo("no iptables programs are installed")
