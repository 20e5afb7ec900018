"""Rules with counters as a kernel would print them, for tests of whoever reads counters."""

from collections.abc import Callable

from kproxy_ipt.ruleset.model import Ruleset
from kproxy_ipt.ruleset.render import render_chain


def counted_text(ruleset: Ruleset, packets: Callable[[str], int]) -> str:
    """
    The output of `iptables-save --counters`.

    Args:
        ruleset: The rules.
        packets: What the rule of a line (`-A CHAIN ...`) has counted.
    """
    lines: list[str] = []
    for table in ruleset.tables.values():
        lines.append(f"*{table.name}")
        lines += [f":{chain.name} {chain.policy} [0:0]" for chain in table.chains.values()]
        for chain in table.chains.values():
            lines += [f"[{count}:{60 * count}] {line}" for line in render_chain(chain) for count in (packets(line),)]
        lines.append("COMMIT")
    return "".join(f"{line}\n" for line in lines)
