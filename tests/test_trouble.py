"""The page about known troubles names tests that exist."""

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
