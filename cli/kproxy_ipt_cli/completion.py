"""`kproxy-ipt completion`."""

import click
from click.shell_completion import get_completion_class


@click.command(name="completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> None:
    """
    Print a script that completes commands and options.

    \b
    Examples:
      source <(kproxy-ipt completion bash)
      kproxy-ipt completion fish > ~/.config/fish/completions/kproxy-ipt.fish
    """
    from kproxy_ipt_cli.main import cli

    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(completion(cli, {}, "kproxy-ipt", "_KPROXY_IPT_COMPLETE").source())
