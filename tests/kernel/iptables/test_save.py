"""Listing with the real programs of both backends: what is shown, and what is an error or a warning."""

from collections.abc import Callable

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError
from kproxy_ipt.kernel.command import SubprocessRunner
from kproxy_ipt.kernel.iptables import Iptables
from kproxy_ipt.kernel.xtables_proc import legacy_tables

pytestmark = pytest.mark.kernel

_TARGETS = "*nat\n:A - [0:0]\n:B - [0:0]\nCOMMIT\n"

WithScript = Callable[[Iptables, str], Iptables]


def test_save_shows_the_wanted_tables_only(iptables: Iptables) -> None:
    """Of three tables two are asked for; a table that does not exist is passed over."""
    iptables.restore("*nat\n:A - [0:0]\nCOMMIT\n*filter\n:F - [0:0]\nCOMMIT\n*mangle\n:M - [0:0]\nCOMMIT\n")

    text = iptables.start_save(("nat", "filter", "raw")).text()

    assert sorted(line for line in text.splitlines() if line.startswith("*")) == ["*filter", "*nat"]
    assert ":M " not in text


@pytest.mark.parametrize("tables", [None, ("nat",), ("nat", "filter")])
def test_saving_creates_nothing(iptables: Iptables, tables: tuple[str, ...] | None) -> None:
    """In an empty namespace a listing has no rules, and no table exists afterwards."""
    assert "-A " not in iptables.start_save(tables).text()

    assert legacy_tables(Family.IPV4) == ()
    assert SubprocessRunner().run(["nft", "list", "ruleset"]).stdout == ""


@pytest.mark.parametrize("cut", ["head -c 120", "grep -v ^COMMIT", "head -n -1"])
def test_listing_that_is_cut_off_is_an_error(nft: Iptables, with_script: WithScript, cut: str) -> None:
    """Never an empty or shorter listing, even if the program claims success."""
    nft.restore(_TARGETS)
    script = with_script(nft, f'$SAVE "$@" | {cut}')

    with pytest.raises(KernelError, match="cut off"):
        script.start_save(("nat",)).text()


def test_table_that_cannot_be_shown_is_an_error(nft: Iptables) -> None:
    """Foreign rules in our table hide all of it: the listing is broken, not empty."""
    nft.restore(_TARGETS)
    runner = SubprocessRunner()
    assert (
        runner.run(["nft", "add", "rule", "ip", "nat", "A", "numgen", "inc", "mod", "2", "0", "accept"]).exit_status
        == 0
    )

    with pytest.raises(KernelError, match="cannot show the table nat"):
        nft.start_save(("nat", "filter")).text()


def test_foreign_table_that_cannot_be_shown_is_a_warning(nft: Iptables) -> None:
    """Tables that nobody asked for do not matter, but are told."""
    nft.restore("*nat\n:A - [0:0]\nCOMMIT\n*mangle\n:M - [0:0]\nCOMMIT\n")
    runner = SubprocessRunner()
    runner.run(["nft", "add", "rule", "ip", "mangle", "M", "numgen", "inc", "mod", "2", "0", "accept"])
    save = nft.start_save(("nat", "filter"))

    assert ":A - [0:0]" in save.text()
    assert save.warnings == ("Table `mangle' is incompatible, use 'nft' tool.",)


def test_legacy_tables_beside_nft_are_a_warning(nft: Iptables, legacy: Iptables) -> None:
    """The program's remark about the other backend is passed on."""
    legacy.restore(_TARGETS)
    save = nft.start_save(("nat",))
    save.text()

    assert save.warnings == ("Warning: iptables-legacy tables present, use iptables-legacy-save to see them",)


def test_tables_are_listed_one_by_one_where_all_together_fails(nft: Iptables, with_script: WithScript) -> None:
    """A foreign table that breaks the program does not hide ours."""
    nft.restore(_TARGETS)
    script = with_script(nft, '[ "$1" = -t ] || kill -SEGV $$\nexec $SAVE "$@"')
    save = script.start_save(("nat", "filter"))

    assert ":A - [0:0]" in save.text()
    assert "cannot list all tables together" in save.warnings[0]


def test_failing_save_is_told_with_the_name_of_the_program(nft: Iptables, with_script: WithScript) -> None:
    """The error names the program, its exit status and its words."""
    script = with_script(nft, "echo 'unknown expression' >&2; exit 1")

    with pytest.raises(
        KernelError, match=r"program failed while listing the tables \(exit status 1\): unknown expression"
    ):
        script.start_save(("nat", "filter")).text()
