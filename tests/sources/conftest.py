"""A folder that tests of sources watch."""

from pathlib import Path

import pytest

from kproxy_ipt.testing.folder_watching import services_yaml


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one manifest of two Services."""
    made = tmp_path / "manifests"
    made.mkdir()
    (made / "a.yaml").write_text(services_yaml("web", "db"))
    return made
