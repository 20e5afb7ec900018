"""
The pytest plugin: golden folders collected as tests, and the fixture `kproxy` for flows in tests of one's own.

Loaded by every pytest run of an environment that has this package, so it imports nothing but pytest until a golden
folder is collected or the fixture is used.

- `--golden DIR` (repeatable) adds the cases at or below DIR to what is tested.
- `kproxy_golden_paths` of the ini file says where cases are: they are tested when pytest is run without naming files or
  folders, and when one that holds them is named.
- Of each case every rule file and every flow is a test of its own, named after its folder.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kproxy_ipt.testing.flow_assertions import GivenConfig, GivenObjects, Rules

_CASE_FILE = "case.yaml"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("kproxy-ipt", "golden cases of Kubernetes Services (kproxy-ipt)")
    group.addoption(
        "--golden",
        dest="kproxy_golden",
        action="append",
        default=[],
        metavar="DIR",
        help="Test the golden cases (folders with a case.yaml) at or below DIR. Repeatable.",
    )
    group.addoption(
        "--golden-semantic",
        dest="kproxy_golden_semantic",
        action="store_true",
        help="Let golden cases fail only where behaviour changed, not where text did.",
    )
    parser.addini("kproxy_golden_paths", "Folders that hold golden cases.", type="paths", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Add golden folders to what is collected."""
    named = [_absolute(config, text) for text in config.getoption("kproxy_golden")]
    for path in named:
        if not path.is_dir():
            raise pytest.UsageError(f"--golden {path}: no such folder")
    known = config.getini("kproxy_golden_paths") if config.args_source is not pytest.Config.ArgsSource.ARGS else []
    for path in (*named, *known):
        if not any(path.is_relative_to(_absolute(config, text.partition("::")[0])) for text in config.args):
            config.args.append(str(path))


def _absolute(config: pytest.Config, text: str) -> Path:
    return (config.invocation_params.dir / text).resolve()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take the `case.yaml` of a golden case for its tests."""
    if file_path.name != _CASE_FILE or not _is_golden(parent.config, file_path):
        return None
    from kproxy_ipt.testing.pytest_items import GoldenFile

    return GoldenFile.from_parent(parent, path=file_path)


def _is_golden(config: pytest.Config, path: Path) -> bool:
    folders = [_absolute(config, text) for text in config.getoption("kproxy_golden")]
    folders += [folder.resolve() for folder in config.getini("kproxy_golden_paths")]
    return any(path.resolve().is_relative_to(folder) for folder in folders)


class Kproxy:
    """What the fixture `kproxy` is."""

    def rules(
        self,
        objects: "GivenObjects",
        *,
        config: "GivenConfig" = None,
        node: str = "",
        addresses: tuple[str, ...] = (),
        nfacct: bool = True,
    ) -> "Rules":
        """The rules that a node makes of *objects*; see `kproxy_ipt.testing.flow_assertions.rules_for`."""
        from kproxy_ipt.testing.flow_assertions import rules_for

        return rules_for(objects, config=config, node=node, addresses=addresses, nfacct=nfacct)


@pytest.fixture(scope="session")
def kproxy() -> Kproxy:
    """Rules of Services without any kernel: `kproxy.rules(objects).flow(source="pod", to=ip, port=80).reaches(...)`."""
    return Kproxy()
