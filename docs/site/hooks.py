"""
What the site needs beyond its pages.

Pages link to files of the project that are no pages: examples, the changelog. The site gets a copy of each.

A link that leads out of `docs/` works where the project's folder is read as it is; in the site such a file stands
beside the pages, under its path in the project.

Help texts keep the lines of examples and tables, which Markdown would join.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")
_KEPT_LINES = re.compile(r"<p>([^<\n]*)\n(  (?:.(?!</p>)|\n)*.)</p>")
_ALWAYS = ("CHANGELOG.md",)
"""In the navigation, linked to or not."""


def _outside(page_uri: str, link: str) -> str:
    """The path in the project of a *link* of a page that leads out of the pages' folder, else ""."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page_uri), link))
    return "" if path.startswith(("docs/", "../")) else path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a copy of every file that a page links to and that is no page."""
    wanted = set(_ALWAYS)
    for file in files.documentation_pages():
        wanted |= {_outside(file.src_uri, link) for _, link in _LINK.findall(file.content_string)}
    for path in sorted(wanted - {""}):
        if (_ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(_ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links out of the pages' folder lead to the copies; what does not exist stays, and fails the build."""
    here = posixpath.dirname(page.file.src_uri) or "."

    def inside(match: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, match[2])
        known = path and files.get_file_from_path(path)
        return match[1] + (posixpath.relpath(path, here) if known else match[2])

    return _LINK.sub(inside, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Set lines of help texts that are indented as they stand there."""
    if page.file.src_uri != "command-reference.md":
        return html
    return _KEPT_LINES.sub(r"<p>\1</p><pre><code>\2</code></pre>", html)
