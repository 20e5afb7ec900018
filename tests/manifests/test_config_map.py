"""The ConfigMap is in kubeadm's shape, and its two files are read by what reads them in a pod."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.model import ClientConnection, Config
from kproxy_ipt.errors import ConfigError
from kproxy_ipt.sources.kubeconfig import SERVICE_ACCOUNT_FOLDER, ClusterConnection, find_access

_ROOT = Path(__file__).parents[2]
_FROM_KUBEADM = _ROOT / "tests" / "config" / "kubeadm-config.conf"


def test_names_and_keys_are_those_of_kubeadm(base: Mapping[str, Any]) -> None:
    """Both kubeadm and the DaemonSet look for these."""
    config_map = base["ConfigMap"]

    assert config_map["metadata"] == {
        "name": "kube-proxy",
        "namespace": "kube-system",
        "labels": {"app": "kube-proxy"},
    }
    assert set(config_map["data"]) == {"config.conf", "kubeconfig.conf"}


def test_configuration_is_what_kubeadm_writes(base: Mapping[str, Any]) -> None:
    """Field by field, in its order, the zeros included; only the addresses of pods are left open."""
    ours = yaml.safe_load(base["ConfigMap"]["data"]["config.conf"])
    kubeadms = yaml.safe_load(_FROM_KUBEADM.read_text(encoding="utf-8"))

    assert list(ours) == list(kubeadms)
    assert ours == kubeadms | {"clusterCIDR": ""}


def test_configuration_means_the_defaults(base: Mapping[str, Any]) -> None:
    """Nothing is unknown, nothing plays no part, and all but the kubeconfig is as without a file."""
    decoded = decode_config(base["ConfigMap"]["data"]["config.conf"].encode(), "config.conf")

    assert decoded.notes == ()
    assert decoded.config == Config(
        client_connection=ClientConnection(kubeconfig="/var/lib/kube-proxy/kubeconfig.conf")
    )


def test_configuration_names_the_kubeconfig_that_is_mounted(
    base: Mapping[str, Any], container: Mapping[str, Any]
) -> None:
    """The folder of the volume and the key of the ConfigMap make the path that the configuration names."""
    config = yaml.safe_load(base["ConfigMap"]["data"]["config.conf"])
    folder = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "kube-proxy")

    assert config["clientConnection"]["kubeconfig"] == f"{folder}/kubeconfig.conf"


def test_kubeconfig_leads_to_the_server_with_the_token_of_the_pod(base: Mapping[str, Any], tmp_path: Path) -> None:
    """The file is found by its own context; CA and token are those that the kubelet mounts and rotates."""
    path = tmp_path / "kubeconfig.conf"
    path.write_text(base["ConfigMap"]["data"]["kubeconfig.conf"], encoding="utf-8")

    access = find_access(ClusterConnection(kubeconfig=str(path)), {})

    assert access.server == "https://kubernetes.invalid:6443"
    assert access.cluster["certificate-authority"] == f"{SERVICE_ACCOUNT_FOLDER}/ca.crt"
    assert access.token_file == f"{SERVICE_ACCOUNT_FOLDER}/token"
    assert access.user == {}


def test_range_that_nobody_filled_in_is_refused(base: Mapping[str, Any], manifests: Path) -> None:
    """The placeholder of the overlay for fresh clusters stops the daemon, with the name of the field."""
    cluster = yaml.safe_load((manifests / "overlays/kubeadm-fresh/cluster.yaml").read_text(encoding="utf-8"))
    text = base["ConfigMap"]["data"]["config.conf"]
    filled = text.replace('clusterCIDR: ""', f'clusterCIDR: "{cluster["data"]["clusterCIDR"]}"')

    with pytest.raises(ConfigError, match='ClusterCIDR: Invalid value: "POD-SUBNET"'):
        decode_config(filled.encode(), "config.conf")
