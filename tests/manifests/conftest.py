"""The manifests as plain documents, and what a kubelet and a container runtime make of a pod."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def manifests() -> Path:
    """The folder of the manifests."""
    return _ROOT / "manifests"


@pytest.fixture(scope="session")
def base(manifests: Path) -> Mapping[str, Any]:
    """The objects of the base by kind; there is one of each."""
    paths = sorted(path for path in (manifests / "base").glob("*.yaml") if path.name != "kustomization.yaml")
    documents = [document for path in paths for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents)
    return by_kind


@pytest.fixture(scope="session")
def pod(base: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod's spec."""
    spec: Mapping[str, Any] = base["DaemonSet"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="session")
def container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The only container of the pod."""
    (only,) = pod["containers"]
    assert "initContainers" not in pod
    found: Mapping[str, Any] = only
    return found
