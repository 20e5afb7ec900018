"""Base and overlays are complete, and kustomize (where kubectl is installed) makes of them what it should."""

import copy
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

_FOLDERS = ("base", "components/cluster", "overlays/kubeadm-fresh", "overlays/kubeadm-replace", "overlays/lab")
_ON_THE_BASE = {"overlays/kubeadm-fresh", "overlays/lab"}
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
    own = tmp_path / "manifests"
    shutil.copytree(manifests, own)
    cluster = own / "overlays/kubeadm-fresh/cluster.yaml"
    text = cluster.read_text(encoding="utf-8")
    assert text.count("https://CONTROL-PLANE-ENDPOINT:6443") == text.count("POD-SUBNET") == 1
    text = text.replace("https://CONTROL-PLANE-ENDPOINT:6443", _SERVER).replace("POD-SUBNET", _POD_SUBNETS)
    cluster.write_text(text, encoding="utf-8")
    return own


@pytest.mark.parametrize("name", _FOLDERS)
def test_kustomization_lists_every_file_and_nothing_else(manifests: Path, name: str) -> None:
    """No resource is missing, and no file of the folder is forgotten."""
    folder = manifests / name
    kustomization = _kustomization(folder)
    resources = {(folder / resource).resolve() for resource in kustomization.get("resources", ())}
    listed = resources | {(folder / patch["path"]).resolve() for patch in kustomization.get("patches", ())}
    files = {path.resolve() for path in folder.iterdir() if path.name not in {"kustomization.yaml", "kind.yaml"}}
    component = kustomization["kind"] == "Component"

    assert set(kustomization) <= {"apiVersion", "kind", "resources", "components", "patches", "replacements"}
    assert kustomization["apiVersion"] == f"kustomize.config.k8s.io/{'v1alpha1' if component else 'v1beta1'}"
    assert component == (name == "components/cluster")
    assert listed == files | ({(manifests / "base").resolve()} if name in _ON_THE_BASE else set())
    assert kustomization.get("components") == (["../../components/cluster"] if name in _ON_THE_BASE else None)


def test_replacements_hit_the_two_values_of_a_cluster(base: Mapping[str, Any], manifests: Path) -> None:
    """Counting quotation marks, each ends up at its field: the server, the range of the pods."""
    hit = {}
    for replacement in _kustomization(manifests / "components/cluster")["replacements"]:
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
def test_lab_differs_from_the_base_in_what_a_lab_wants(base: Mapping[str, Any], manifests: Path) -> None:
    """The two values are those of kind; the pod says more, has a limit of memory, and never fetches its image."""
    by_kind = {document["kind"]: document for document in _build(manifests / "overlays/lab")}
    expected = copy.deepcopy(dict(base))
    (container,) = expected["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    container |= {"imagePullPolicy": "Never", "args": ["-v=2"]}
    container["resources"]["limits"] = {"memory": "512Mi"}
    config, kubeconfig = (by_kind["ConfigMap"]["data"][key] for key in ("config.conf", "kubeconfig.conf"))

    assert by_kind | {"ConfigMap": base["ConfigMap"]} == expected
    assert yaml.safe_load(kubeconfig)["clusters"][0]["cluster"]["server"] == "https://kind-control-plane:6443"
    assert yaml.safe_load(config)["clusterCIDR"] == "10.244.0.0/16"


def test_cluster_of_kind_has_no_proxy_and_the_pods_of_the_lab(manifests: Path) -> None:
    """Its range of pods is what the overlay fills in; its name is the default, which is in that of the server."""
    cluster = yaml.safe_load((manifests / "overlays/lab/kind.yaml").read_text(encoding="utf-8"))
    filled = yaml.safe_load((manifests / "overlays/lab/cluster.yaml").read_text(encoding="utf-8"))["data"]

    assert cluster["networking"] == {"kubeProxyMode": "none", "podSubnet": filled["clusterCIDR"]}
    assert "name" not in cluster
    assert filled["server"] == "https://kind-control-plane:6443"


@needs_kubectl
def test_kustomize_gives_the_replacement_as_it_stands(manifests: Path) -> None:
    """One object: a part of a DaemonSet, which the API server merges into the one it has."""
    folder = manifests / "overlays/kubeadm-replace"

    assert _build(folder) == [yaml.safe_load((folder / "daemonset.yaml").read_text(encoding="utf-8"))]
