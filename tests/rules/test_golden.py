"""The recorded rules of a real kube-proxy are the rules that we build."""

from pathlib import Path

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.rules.build import with_base_chains
from kproxy_ipt.ruleset.canonical import canonical_ruleset
from kproxy_ipt.testing.golden_case import FLOWS_FILE
from kproxy_ipt.testing.recorded import CASE_FILES, recorded_case

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.yaml"))


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_rules_are_those_of_kube_proxy(folder: Path, family: Family) -> None:
    """Same chains, same rules, same text, in the canonical form."""
    case = recorded_case(folder)

    assert case.canonical[family] == canonical_ruleset(with_base_chains(case.desired(family)))


def test_every_golden_folder_is_read() -> None:
    """A folder without a case, or a case with other files than the five and flows, would never be compared."""
    folders = {path for path in GOLDEN.iterdir() if path.is_dir()}
    files = {folder.name: frozenset(path.name for path in folder.iterdir()) for folder in folders}

    assert set(CASES) == folders
    assert {name: found for name, found in files.items() if found - {FLOWS_FILE} != CASE_FILES} == {}
    assert len(CASES) >= 80
