"""A running API server, certificates, and kubeconfig files; no setting of the machine leaks in."""

import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.certificates import CertificateAuthority

KubeconfigWriter = Callable[..., Path]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty home and none of the variables that decide about clusters and proxies."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def api_server() -> Iterator[ApiServer]:
    """A server without TLS and without credentials."""
    with ApiServer() as server:
        yield server


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """A certificate authority for the whole run."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program")
    return CertificateAuthority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secure_server(authority: CertificateAuthority) -> Iterator[ApiServer]:
    """A TLS server that knows the token `good` and asks for client certificates."""
    context = authority.server_context(authority.issue("server"), clients=ssl.CERT_OPTIONAL)
    with ApiServer(tls=context, tokens={"good": "system:serviceaccount:kube-system:kube-proxy"}) as server:
        yield server


@pytest.fixture
def waits() -> list[float]:
    """For `waits.append` in the place of sleep: seconds that would have been waited."""
    return []


@pytest.fixture
def write_kubeconfig(tmp_path: Path) -> KubeconfigWriter:
    """Write a kubeconfig with the context `main`, from the entries of its cluster and its user; gives the path."""

    def write(
        cluster: Mapping[str, object], user: Mapping[str, object], *, name: str = "config", context: str = "main"
    ) -> Path:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
            "clusters": [{"name": context, "cluster": dict(cluster)}],
            "users": [{"name": context, "user": dict(user)}],
        }
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(document))
        return path

    return write
