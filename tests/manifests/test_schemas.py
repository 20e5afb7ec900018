"""What is applied is what API servers take: each object is held against the schemas of several Kubernetes versions."""

import copy
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

_ROOT = Path(__file__).parents[2]
_VERSIONS = ("1.32", "1.34", "1.36")
_RENDERED = ("base", "overlays/kubeadm-fresh", "overlays/lab")
_FILES = sorted([*(_ROOT / "manifests/base").glob("*.yaml"), *(_ROOT / "manifests/examples").glob("*.yaml")])


def _validate(document: Mapping[str, Any], version: str) -> None:
    """Strictly: a field that the API does not know is an error, as it is for `kubectl apply`."""
    assert kubernetes_validate.validate(document, version, strict=True) == version


def _documents(file: Path) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize(
    "file", [file for file in _FILES if file.name != "kustomization.yaml"], ids=lambda file: file.name
)
def test_files_are_valid(file: Path, version: str) -> None:
    """Every object of the base and of the examples."""
    documents = list(_documents(file))

    assert documents
    for document in documents:
        _validate(document, version)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs the program kubectl")
@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize("folder", _RENDERED)
def test_what_kustomize_renders_is_valid(folder: str, version: str) -> None:
    """What `kubectl apply -k` would send; the overlay that replaces an image is a part of an object, and not here."""
    command = ["kubectl", "kustomize", str(_ROOT / "manifests" / folder)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    documents = list(yaml.safe_load_all(rendered))

    assert len(documents) == 5
    for document in documents:
        _validate(document, version)


def _misspelt(container: dict[str, Any]) -> None:
    container["securityContext"]["readOnlyRootFileSystem"] = container["securityContext"].pop("readOnlyRootFilesystem")


def _of_another_type(container: dict[str, Any]) -> None:
    container["livenessProbe"]["periodSeconds"] = "30"


def _incomplete(container: dict[str, Any]) -> None:
    del container["name"]


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize("damage", [_misspelt, _of_another_type, _incomplete])
def test_damage_is_noticed(base: Mapping[str, Any], damage: Callable[[dict[str, Any]], None], version: str) -> None:
    """A field of another name, of another type, and one that is missing."""
    daemonset = copy.deepcopy(base["DaemonSet"])
    damage(daemonset["spec"]["template"]["spec"]["containers"][0])

    with pytest.raises(kubernetes_validate.ValidationError):
        _validate(daemonset, version)
