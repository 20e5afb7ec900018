"""The documentation as a site: it is built strictly, holds every page, and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
import yaml

import kproxy_ipt
from kproxy_ipt_cli.main import cli

_ROOT = Path(__file__).parents[1]
_CONFIG = _ROOT / "docs" / "site" / "mkdocs.yml"


class _Loaded(HTMLParser):
    """Collects what a browser fetches for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Links that a person has to follow are none of it."""
        found = dict(attrs)
        address = found.get("src") or (found.get("href") if tag == "link" and found.get("rel") != "canonical" else None)
        if address:
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(_CONFIG)]
    done = subprocess.run(
        [*command, "--site-dir", str(folder)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def _navigation() -> list[str]:
    sections: list[dict[str, list[str]]] = yaml.safe_load(_CONFIG.read_text(encoding="utf-8"))["nav"]
    return [page for section in sections for pages in section.values() for page in pages]


def test_every_page_is_in_the_navigation_once() -> None:
    """A new page is added to docs/site/mkdocs.yml, under the heading where people look for it."""
    pages = {str(path.relative_to(_ROOT / "docs")) for path in (_ROOT / "docs").rglob("*.md")}

    listed = _navigation()
    assert sorted(listed) == sorted({*pages, "CHANGELOG.md"})


def test_site_is_built_without_a_warning_and_holds_every_page(site: Path) -> None:
    """No link and no anchor that leads nowhere; each page of the navigation has its own file."""
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}

    wanted = {re.sub(r"(^|/)README\.md$", r"\1index.md", page).removesuffix(".md") + ".html" for page in _navigation()}
    assert wanted <= built


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """Fonts, scripts, styles and pictures are its own: it can be read without a network, and tells nobody."""
    for path in site.rglob("*.html"):
        loaded = _Loaded()
        loaded.feed(path.read_text(encoding="utf-8"))

        assert loaded.addresses
        assert [address for address in loaded.addresses if re.match(r"(\w+:)?//", address)] == [], path


def test_files_outside_of_the_pages_are_there_as_well(site: Path) -> None:
    """Examples and the changelog are linked to, and copied."""
    assert (site / "manifests" / "examples" / "node.yaml").is_file()
    assert "Unreleased" in (site / "CHANGELOG.html").read_text(encoding="utf-8")


def test_reference_describes_every_command_and_every_public_name(site: Path) -> None:
    """From the program and from docstrings: nothing is left out."""
    commands = (site / "command-reference.html").read_text(encoding="utf-8")
    library = (site / "library.html").read_text(encoding="utf-8")

    assert [name for name in cli.list_commands(click.Context(cli)) if f'<h3 id="{name}">' not in commands] == []
    assert "<code>  kproxy-ipt check --from manifests/ --netns lab --hostname-override n1\n" in commands
    public = [name for name in kproxy_ipt.__all__ if name != "__version__"]
    assert [name for name in public if f'id="kproxy_ipt.{name}"' not in library] == []
