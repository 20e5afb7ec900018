"""Pages that promise something name tests that exist, and figures that were measured."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PAGES = ("trouble.md", "compared-with-kube-proxy.md", "takeover.md", "preflight.md")


def test_every_named_test_exists() -> None:
    """A promise whose test was renamed or lost would be one that nobody holds."""
    named = {name for page in _PAGES for name in re.findall(r"`(test_\w+)`", (_ROOT / "docs" / page).read_text())}
    known = {
        name
        for path in (_ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }

    assert len(named) > 50
    assert named <= known


def test_figures_in_the_table_of_modes_were_measured() -> None:
    """New flows with 20,000 Services, by backend and form: those of the page about performance, in microseconds."""
    docs = _ROOT / "docs"
    rows = re.findall(
        r"^\| (\w+) \| ([\w ,]+) \| 20,000 \| ([\d.]+) \|", (docs / "performance.md").read_text(), re.MULTILINE
    )
    measured = {(backend, form): median for backend, form, median in rows[:5]}
    [told] = re.findall(
        r"^\| A new connection meets .*$", (docs / "compared-with-kube-proxy.md").read_text(), re.MULTILINE
    )

    assert f"{measured['nftables', 'nftables map, by hand']} us" in told
    assert f"{measured['legacy', 'tree']} us on legacy and {measured['nft', 'tree']} us on nft" in told
    assert f"{measured['legacy', 'linear']} and {measured['nft', 'linear']} us" in told
