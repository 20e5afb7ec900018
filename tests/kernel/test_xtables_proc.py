"""What /proc tells of the legacy backend, on machines that have none of it."""

from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.kernel.xtables_proc import kernel_extensions, legacy_tables


def test_kernel_without_legacy_tables_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are not there: no table exists, and which extensions would load is not known."""
    monkeypatch.setattr("kproxy_ipt.kernel.xtables_proc._FOLDER", tmp_path)

    assert [legacy_tables(family) for family in Family] == [(), ()]
    assert [kernel_extensions(family) for family in Family] == [None, None]


def test_lists_are_read_by_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each table, match and target."""
    monkeypatch.setattr("kproxy_ipt.kernel.xtables_proc._FOLDER", tmp_path)
    for name, text in (("tables_names", "nat\nfilter\n"), ("tables_matches", "tcp\n"), ("tables_targets", "DNAT\n")):
        (tmp_path / f"ip6_{name}").write_text(text)

    assert (legacy_tables(Family.IPV4), legacy_tables(Family.IPV6)) == ((), ("nat", "filter"))
    assert kernel_extensions(Family.IPV6) == frozenset({"tcp", "DNAT"})
