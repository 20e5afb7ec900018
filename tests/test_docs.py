"""
Every command in the documentation is run, and gives what stands there.

The rules, for README.md, docs/*.md and the lessons in docs/labs:

- A block fenced as ```console is run. A line that begins with `$ ` is a command; lines after it, up to the next command
  or the end of the block, are what it prints, standard output and standard error together. A command goes on in the
  next line where its line ends in a backslash.
- In expected output `...` stands for anything, nothing and several lines included; other text must be there to the
  letter, but for trailing blanks. No expected lines mean that nothing is printed.
- All blocks of a page are run in order, by one bash, in a temporary folder that holds `manifests/examples` and
  `manifests/lab`. There are no network namespaces but those that the page makes, `kproxy-ipt` is the one of this
  environment, and HOME is the temporary folder.
- A command may fail; who wants to show that adds `|| echo "exit code $?"`.
- Commands of `_RUN_BY_CI` are not run. What follows a blank and `#` is a comment.
- A picture that a command writes is the one of that name in `docs/pictures`.
- A block fenced as ```sh is not run, but bash must be able to parse it. No other fence looks like commands: a block
  without a word is a drawing, and has no line that begins with `$ `.
- A lesson in French has the commands of the English one. It is run, with a French environment, where it prints
  something else; else running the English one is enough.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

_ROOT = Path(__file__).parents[1]
_PICTURES = _ROOT / "docs" / "pictures"
_MEASURED = frozenset({"full-sync.svg", "new-flows.svg", "one-endpoint.svg"})
"""Pictures that `make bench` draws."""
_LESSONS = sorted((_ROOT / "docs" / "labs" / "en").glob("*.md"))
_TRANSLATIONS = sorted((_ROOT / "docs" / "labs" / "fr").glob("*.md"))
_PAGES = sorted([_ROOT / "README.md", *(_ROOT / "docs").glob("*.md"), *_LESSONS, *_TRANSLATIONS])
_RUN_BY_CI = frozenset({"make demo", "make test"})
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_MARK = "=== end of command"
# Named namespaces live in /run/netns: a mount namespace of its own hides those of others, and goes with its processes.
_ALONE = 'mount -t tmpfs tmpfs /run && ip link set lo up && exec bash "$0"'


class Command(msgspec.Struct, frozen=True):
    """A command of a page and what it should print."""

    text: str
    expected: str


def _blocks(page: Path, language: str) -> list[str]:
    return [match[2] for match in _FENCE.finditer(page.read_text(encoding="utf-8")) if match[1] == language]


def _commands(page: Path) -> Iterator[Command]:
    for block in _blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            head = re.match(r"(?:.*\\\n)*.*\n?", part)
            text = head[0] if head else part
            yield Command(text.strip(), part[len(text) :].rstrip())


def _original(translation: Path) -> Path:
    return translation.parents[1] / "en" / translation.name


def _pages_to_run() -> list[Path]:
    same = [page for page in _TRANSLATIONS if list(_commands(page)) == list(_commands(_original(page)))]
    return [page for page in _PAGES if page not in same]


def _named(page: Path) -> str:
    return str(page.relative_to(_ROOT))


def _script(commands: list[Command]) -> str:
    """All commands in one shell, each followed by a mark."""
    return "".join(f"{{ {command.text}\n}} </dev/null 2>&1\necho '{_MARK}'\n" for command in commands)


def _run(commands: list[Command], folder: Path, language: str) -> list[str]:
    for name in ("examples", "lab"):
        shutil.copytree(_ROOT / "manifests" / name, folder / "manifests" / name)
    script = folder.parent / f"{folder.name}.sh"
    script.write_text(_script(commands), encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
    ran = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", _ALONE, str(script)],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), "LANG": language},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.stderr == ""
    return ran.stdout.split(f"{_MARK}\n")[:-1]


def _pattern(expected: str) -> re.Pattern[str]:
    parts = (re.escape(part) for part in expected.split("..."))
    return re.compile(".*".join(parts), re.DOTALL)


def _trimmed(printed: str, expected: str) -> str:
    lines = [line.rstrip() for line in printed.splitlines()]
    return "\n".join(line for line in lines if not line.startswith("note: ") or "note: " in expected).rstrip()


@pytest.mark.kernel
@pytest.mark.parametrize("page", _pages_to_run(), ids=_named)
def test_commands_print_what_stands_there(page: Path, tmp_path: Path) -> None:
    """Every command of a page, in order, with nothing prepared."""
    commands = [found for found in _commands(page) if found.text.partition(" #")[0].strip() not in _RUN_BY_CI]
    folder = tmp_path / "page"
    folder.mkdir()

    printed = _run(commands, folder, "fr_FR.UTF-8" if page in _TRANSLATIONS else "C.UTF-8")

    assert len(printed) == len(commands)
    for command, text in zip(commands, printed, strict=True):
        shown = f"$ {command.text}\n--- expected\n{command.expected}\n--- printed\n{text}"
        assert _pattern(command.expected).fullmatch(_trimmed(text, command.expected)), shown
    for picture in folder.glob("*.svg"):
        assert picture.read_text(encoding="utf-8") == (_PICTURES / picture.name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_scripts_can_be_parsed(page: Path) -> None:
    """Blocks that are not run hold no error of syntax."""
    for block in [*_blocks(page, "sh"), *(command.text for command in _commands(page))]:
        parsed = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)

        assert parsed.returncode == 0, parsed.stderr


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_no_command_hides_in_another_block(page: Path) -> None:
    """A command that is not in a block of commands would never be run."""
    text = page.read_text(encoding="utf-8")
    languages = {match[1] for match in _FENCE.finditer(text)}
    outside = _FENCE.sub("", text)

    assert languages <= {"", "console", "sh", "yaml", "json", "python"}
    assert [block for block in _blocks(page, "") if re.search(r"^\$ ", block, re.MULTILINE)] == []
    assert "```" not in outside
    assert not re.search(r"^\$ ", outside, re.MULTILINE)


@pytest.mark.parametrize("page", _PAGES, ids=_named)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A page or file that is linked to exists."""
    links = _LINK.findall(page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_picture_of_chains_is_written_by_a_command() -> None:
    """So it is compared with what the program draws today."""
    commands = " ".join(command.text for page in _PAGES for command in _commands(page))
    pictures = {path.name for path in _PICTURES.glob("*.svg")} - _MEASURED

    assert len(pictures) >= 5
    assert {name for name in pictures if f"--write {name}" not in commands} == set()


def test_every_lesson_is_there_in_both_languages() -> None:
    """The same pages, and on each the same commands and scripts in the same order; words of their output may differ."""
    assert [page.name for page in _LESSONS] == [page.name for page in _TRANSLATIONS]
    assert len(_LESSONS) == 7
    for page in _TRANSLATIONS:
        original = _original(page)
        assert [each.text for each in _commands(page)] == [each.text for each in _commands(original)], page
        # Of a script that is only shown, comments are translated.
        shown, expected = (re.sub(r" +#.*", "", "".join(_blocks(each, "sh"))) for each in (page, original))
        assert shown == expected, page


def test_the_commands_are_found() -> None:
    """The pages do hold commands: a reader that finds none would make all these tests pass."""
    found = [command.text for page in _PAGES for command in _commands(page)]

    assert len(found) >= 15
    assert any(text.startswith("kproxy-ipt sync --once ") for text in found)
