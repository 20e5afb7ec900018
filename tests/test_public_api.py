"""The public names of the library: which there are, and that they are cheap until they are used."""

import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import kproxy_ipt

_ROOT = Path(__file__).parents[1]
_PUBLIC = [
    "CheckReport",
    "ClusterConnection",
    "Config",
    "ConfigError",
    "Desired",
    "Family",
    "Finding",
    "KernelError",
    "KproxyError",
    "MachineFacts",
    "Objects",
    "RestoreError",
    "Ruleset",
    "RunReport",
    "Snapshot",
    "SourceError",
    "Target",
    "__version__",
    "build_ruleset",
    "canonical",
    "canonical_ruleset",
    "check",
    "clean_up",
    "compare_rulesets",
    "decode_config",
    "node_facts",
    "parse_save",
    "read_cluster",
    "read_paths",
    "render_save",
    "sync_once",
    "take_snapshot",
]
_MOST_MILLISECONDS = 20


def test_public_names_are_pinned() -> None:
    """Adding or taking away a name is a decision that this list shows in a diff."""
    assert kproxy_ipt.__all__ == _PUBLIC
    assert set(_PUBLIC) <= set(dir(kproxy_ipt))


@pytest.mark.parametrize("name", [name for name in _PUBLIC if name != "__version__"])
def test_public_name_can_be_imported(name: str) -> None:
    """Each leads to a documented class or function of that name."""
    value = getattr(kproxy_ipt, name)

    assert value.__name__ == name
    assert inspect.getdoc(value)


def test_names_for_type_checkers_are_those_at_run_time() -> None:
    """What a type checker sees is imported from the module where it is found when the program runs."""
    tree = ast.parse(inspect.getsource(kproxy_ipt))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {(name.name, f"{node.module}") for node in imports for name in node.names}

    assert seen == {(name, f"kproxy_ipt.{home}") for name, home in kproxy_ipt._HOMES.items()}
    assert {*kproxy_ipt._HOMES, "__version__"} == set(_PUBLIC)


def test_unknown_name_is_an_attribute_error() -> None:
    """So `hasattr` works, and the message is the usual one."""
    name = "sync_twice"

    with pytest.raises(AttributeError, match="module 'kproxy_ipt' has no attribute 'sync_twice'"):
        getattr(kproxy_ipt, name)


def test_import_costs_next_to_nothing() -> None:
    """The package alone is imported in less than 20 ms of processor time, without any of its modules."""
    script = (
        "import sys, time; t = time.process_time(); import kproxy_ipt; t = time.process_time() - t;"
        "print(t * 1000, [name for name in sys.modules if name.startswith('kproxy_ipt.')])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    milliseconds, _, modules = shown.strip().partition(" ")

    assert float(milliseconds) < _MOST_MILLISECONDS
    assert modules == "[]"


def test_example_of_the_documentation_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in the docstring gives what it says."""
    monkeypatch.chdir(_ROOT)
    (example,) = doctest.DocTestFinder(recurse=False).find(kproxy_ipt, globs={})
    result = doctest.DocTestRunner().run(example)

    assert (result.failed, result.attempted > 5) == (0, True)


def test_example_with_a_kernel_uses_public_names() -> None:
    """The second example, whose calls other tests make, parses and needs nothing else."""
    code = (kproxy_ipt.__doc__ or "").partition("(as root)::\n")[2]
    used = {node.id for node in ast.walk(ast.parse(inspect.cleandoc(code))) if isinstance(node, ast.Name)}

    assert used - {"objects", "report"} <= set(_PUBLIC)
