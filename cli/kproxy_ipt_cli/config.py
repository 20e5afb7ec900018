"""`kproxy-ipt config`."""

import click

from kproxy_ipt.config.encode import config_document, encode_config
from kproxy_ipt_cli._failures import failing
from kproxy_ipt_cli._options import flag_options, given_flags, output_option, read_config
from kproxy_ipt_cli._output import JSON, plain, print_document, print_notes


@click.command(name="config", short_help="Print the effective configuration.")
@flag_options
@output_option
@failing
def command(*, output: str, **flags: tuple[str, ...]) -> None:
    """
    Print the configuration that a file and flags make together, defaults included.

    The text is a KubeProxyConfiguration, as `kube-proxy --write-config-to` would write it. All flags of kube-proxy are
    accepted, also those not listed here.

    \b
    Examples:
      kproxy-ipt config --config /var/lib/kube-proxy/config.conf
      kproxy-ipt config --cluster-cidr 10.244.0.0/16 --masquerade-all --output json
    """
    config, notes = read_config(given_flags(flags))
    print_notes(notes)
    if output == JSON:
        print_document(plain(config_document(config)), output)
    else:
        click.echo(encode_config(config), nl=False)
