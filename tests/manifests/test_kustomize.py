"""Base and overlays are complete, and kustomize (where kubectl is installed) makes of them what it should."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

_FOLDERS = ("base", "overlays/kubeadm-fresh", "overlays/kubeadm-replace")
_SERVER = "https://192.0.2.10:6443"
_POD_SUBNETS = "10.244.0.0/16,fd00:10:244::/48"
_FILLED = {"kubeconfig.conf": f'server: "{_SERVER}"', "config.conf": f'clusterCIDR: "{_POD_SUBNETS}"'}
_EMPTY = {"kubeconfig.conf": 'server: "https://kubernetes.invalid:6443"', "config.conf": 'clusterCIDR: ""'}

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs the program kubectl")


def _kustomization(folder: Path) -> Mapping[str, Any]:
    document: Mapping[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    return document


def _build(folder: Path) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would apply."""
    command = ["kubectl", "kustomize", str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert built.stderr == ""
    return list(yaml.safe_load_all(built.stdout))


@pytest.fixture
def filled(manifests: Path, tmp_path: Path) -> Path:
    """A copy of the manifests in which somebody filled in the two values of a fresh cluster."""
    copy = tmp_path / "manifests"
    shutil.copytree(manifests, copy)
    cluster = copy / "overlays/kubeadm-fresh/cluster.yaml"
    text = cluster.read_text(encoding="utf-8")
    assert text.count("https://CONTROL-PLANE-ENDPOINT:6443") == text.count("POD-SUBNET") == 1
    text = text.replace("https://CONTROL-PLANE-ENDPOINT:6443", _SERVER).replace("POD-SUBNET", _POD_SUBNETS)
    cluster.write_text(text, encoding="utf-8")
    return copy


@pytest.mark.parametrize("name", _FOLDERS)
def test_kustomization_lists_every_file_and_nothing_else(manifests: Path, name: str) -> None:
    """No resource is missing, and no file of the folder is forgotten."""
    folder = manifests / name
    kustomization = _kustomization(folder)
    listed = {(folder / resource).resolve() for resource in kustomization["resources"]}
    files = {path.resolve() for path in folder.iterdir() if path.name != "kustomization.yaml"}

    assert set(kustomization) <= {"apiVersion", "kind", "resources", "replacements"}
    assert (kustomization["apiVersion"], kustomization["kind"]) == (
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
    )
    assert listed == files | ({(manifests / "base").resolve()} if name == "overlays/kubeadm-fresh" else set())


def test_replacements_hit_the_two_values_of_a_cluster(base: Mapping[str, Any], manifests: Path) -> None:
    """Counting quotation marks, each ends up at its field: the server, the range of the pods."""
    hit = {}
    for replacement in _kustomization(manifests / "overlays/kubeadm-fresh")["replacements"]:
        ((target,), source) = replacement["targets"], replacement["source"]
        (path,) = target["fieldPaths"]
        key = path.removeprefix("data.[").removesuffix("]")
        assert (target["select"], target["options"]["delimiter"]) == ({"kind": "ConfigMap", "name": "kube-proxy"}, '"')
        pieces = base["ConfigMap"]["data"][key].split('"')
        hit[source["fieldPath"]] = pieces[target["options"]["index"] - 1].split("\n")[-1].strip()

    assert hit == {"data.server": "server:", "data.clusterCIDR": "clusterCIDR:"}


def test_replacing_changes_the_image_and_nothing_else(base: Mapping[str, Any], manifests: Path) -> None:
    """The overlay for existing clusters says which DaemonSet and container, and the image of the base."""
    path = manifests / "overlays/kubeadm-replace/daemonset.yaml"
    image = base["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["image"]

    assert yaml.safe_load(path.read_text(encoding="utf-8")) == {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [{"name": "kube-proxy", "image": image}]}}},
    }


@needs_kubectl
def test_kustomize_gives_the_base_as_it_stands(base: Mapping[str, Any], manifests: Path) -> None:
    """Five objects, none changed on the way."""
    assert {built["kind"]: built for built in _build(manifests / "base")} == base


@needs_kubectl
def test_fresh_cluster_differs_from_the_base_in_two_values(base: Mapping[str, Any], filled: Path) -> None:
    """Server and range of the pods are filled in; what they were read from is not applied."""
    built = _build(filled / "overlays/kubeadm-fresh")
    by_kind = {document["kind"]: document for document in built}
    expected = {key: text.replace(_EMPTY[key], _FILLED[key]) for key, text in base["ConfigMap"]["data"].items()}

    assert len(built) == len(base)
    assert by_kind["ConfigMap"]["data"] == expected != base["ConfigMap"]["data"]
    assert {**by_kind, "ConfigMap": base["ConfigMap"]} == base


@needs_kubectl
def test_kustomize_gives_the_replacement_as_it_stands(manifests: Path) -> None:
    """One object: a part of a DaemonSet, which the API server merges into the one it has."""
    folder = manifests / "overlays/kubeadm-replace"

    assert _build(folder) == [yaml.safe_load((folder / "daemonset.yaml").read_text(encoding="utf-8"))]
