"""Facts about TLS and credentials: what kubeconfig files, pods and plug-ins say arrives at a real TLS server."""

import asyncio
import base64
import json
import ssl
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kproxy_ipt.errors import SourceError
from kproxy_ipt.sources.cluster import ClusterConnection, load_access, read_cluster
from kproxy_ipt.sources.kubeconfig import find_access
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.certificates import CertificateAuthority

KubeconfigWriter = Callable[..., Path]
API_VERSION = "client.authentication.k8s.io/v1"
KUBE_PROXY = "system:serviceaccount:kube-system:kube-proxy"


def user_seen(server: ApiServer, connection: ClusterConnection) -> str:
    """Read the cluster; the name that the server knows us by."""
    read_cluster(connection, node_name="node1")
    return server.requests[-1].user


def trusted(server: ApiServer, authority: CertificateAuthority) -> dict[str, object]:
    """The cluster entry of a kubeconfig for *server*."""
    return {"server": server.url, "certificate-authority": str(authority.certificate)}


def write_plugin(path: Path, *statuses: Mapping[str, object], exit_code: int = 0) -> dict[str, object]:
    """Write a program that prints one status after the other and counts its runs; the `exec` entry for it."""
    for number, status in enumerate(statuses, start=1):
        credential = {"kind": "ExecCredential", "apiVersion": API_VERSION, "status": status}
        path.with_suffix(f".{number}").write_text(json.dumps(credential))
    path.write_text(
        f'#!/bin/sh\necho run >> "$0.runs"\necho "$GREETING" >&2\ncat "$0.$(wc -l < "$0.runs" | tr -d " ")"\n'
        f"exit {exit_code}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    environment = [{"name": "GREETING", "value": "please log in"}]
    return {"apiVersion": API_VERSION, "command": f"./{path.name}", "env": environment, "interactiveMode": "Never"}


def test_token_is_sent_over_verified_tls(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter
) -> None:
    """CA file and token of a kubeconfig are all that is needed."""
    path = write_kubeconfig(trusted(secure_server, authority), {"token": "good"})

    assert user_seen(secure_server, ClusterConnection(kubeconfig=str(path))) == KUBE_PROXY


def test_embedded_authority_is_trusted(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter
) -> None:
    """`certificate-authority-data` works as the file does."""
    embedded = base64.b64encode(authority.certificate.read_bytes()).decode()
    path = write_kubeconfig({"server": secure_server.url, "certificate-authority-data": embedded}, {"token": "good"})

    assert user_seen(secure_server, ClusterConnection(kubeconfig=str(path))) == KUBE_PROXY


def test_client_certificate_names_the_user(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter
) -> None:
    """Without a token the client certificate says who we are, as in kubeadm's admin.conf."""
    admin = authority.issue("kubernetes-admin")
    path = write_kubeconfig(
        trusted(secure_server, authority), {"client-certificate": str(admin.certificate), "client-key": str(admin.key)}
    )

    assert user_seen(secure_server, ClusterConnection(kubeconfig=str(path))) == "kubernetes-admin"


def test_token_file_is_read_without_its_line_feed(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """The kubeconfig.conf of kubeadm: a token file, here one that ends in a line feed."""
    (tmp_path / "token").write_text("good\n")
    path = write_kubeconfig(trusted(secure_server, authority), {"tokenFile": "token"})

    assert user_seen(secure_server, ClusterConnection(kubeconfig=str(path))) == KUBE_PROXY


def test_rotated_token_file_is_read_again_after_refusal(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """A token that is exchanged in the middle of the lists costs one refused request."""
    (tmp_path / "token").write_text("good")
    path = write_kubeconfig(trusted(secure_server, authority), {"tokenFile": "token"})

    def rotate_before_second_request(_: float) -> None:
        if len(secure_server.requests) == 1:
            (tmp_path / "token").write_text("better")
            secure_server.tokens = {"better": "rotated"}

    read_cluster(ClusterConnection(kubeconfig=str(path)), node_name="node1", sleep=rotate_before_second_request)

    assert [request.user for request in secure_server.requests] == [KUBE_PROXY, "", "rotated", "rotated"]


def test_pod_talks_with_its_service_account(
    secure_server: ApiServer, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod nothing has to be configured."""
    (tmp_path / "token").write_text("good")
    (tmp_path / "ca.crt").write_bytes(authority.certificate.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(secure_server.port))

    assert user_seen(secure_server, ClusterConnection(service_account=str(tmp_path))) == KUBE_PROXY


def test_same_access_serves_the_asyncio_client(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """The configuration of the client's `aio` part is filled by the same function, token file included."""
    (tmp_path / "token").write_text("good\n")
    path = write_kubeconfig(trusted(secure_server, authority), {"tokenFile": "token"})

    async def list_nodes() -> None:
        """One request of the asyncio client."""
        from kubernetes.aio import client

        configuration = client.Configuration()
        load_access(configuration, find_access(ClusterConnection(kubeconfig=str(path)), {}))
        async with client.ApiClient(configuration) as api:
            await (await client.CoreV1Api(api).list_node_without_preload_content()).read()

    asyncio.run(list_nodes())

    assert secure_server.requests[-1].user == KUBE_PROXY


def test_insecure_cluster_is_read_without_a_word(secure_server: ApiServer, write_kubeconfig: KubeconfigWriter) -> None:
    """`insecure-skip-tls-verify` is obeyed; no warning disturbs the output (warnings fail this test)."""
    path = write_kubeconfig({"server": secure_server.url, "insecure-skip-tls-verify": True}, {"token": "good"})

    assert user_seen(secure_server, ClusterConnection(kubeconfig=str(path))) == KUBE_PROXY


def test_tls_server_name_is_checked_instead_of_the_address(
    authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter
) -> None:
    """`tls-server-name` names the certificate of a server that is reached by another address."""
    named = authority.issue("named", names="DNS:api.example")
    with ApiServer(tls=authority.server_context(named), tokens={"good": "me"}) as server:
        path = write_kubeconfig({**trusted(server, authority), "tls-server-name": "api.example"}, {"token": "good"})

        assert user_seen(server, ClusterConnection(kubeconfig=str(path))) == "me"


def test_plugin_gives_the_token(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """An `exec` plug-in is run once, in the folder of the kubeconfig, for all requests."""
    plugin = write_plugin(tmp_path / "login", {"token": "good"})
    path = write_kubeconfig(trusted(secure_server, authority), {"exec": plugin})

    assert user_seen(secure_server, ClusterConnection(kubeconfig=str(path))) == KUBE_PROXY
    assert (tmp_path / "login.runs").read_text() == "run\n"


def test_plugin_gives_a_certificate(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """A plug-in may print a client certificate instead of a token."""
    issued = authority.issue("from-plugin")
    status = {"clientCertificateData": issued.certificate.read_text(), "clientKeyData": issued.key.read_text()}
    path = write_kubeconfig(trusted(secure_server, authority), {"exec": write_plugin(tmp_path / "login", status)})

    assert user_seen(secure_server, ClusterConnection(kubeconfig=str(path))) == "from-plugin"


@pytest.mark.parametrize(
    "first", [{"token": "stale"}, {"token": "good", "expirationTimestamp": "2020-01-01T00:00:00Z"}]
)
def test_plugin_is_run_again_for_stale_credentials(
    first: dict[str, object],
    secure_server: ApiServer,
    authority: CertificateAuthority,
    write_kubeconfig: KubeconfigWriter,
    tmp_path: Path,
) -> None:
    """A refused or an expired token makes the plug-in print the next one."""
    plugin = write_plugin(tmp_path / "login", first, *({"token": "fresh"} for _ in range(5)))
    secure_server.tokens = {"fresh": "fresh-user"}
    path = write_kubeconfig(trusted(secure_server, authority), {"exec": plugin})

    assert user_seen(secure_server, ClusterConnection(kubeconfig=str(path))) == "fresh-user"


@pytest.mark.parametrize(
    ("status", "exit_code", "message"),
    [
        ({"token": "good"}, 3, r"login' failed: exec: process returned 3\. please log in"),
        ({}, 0, r"login' printed neither a token nor a client certificate with its key"),
        ({"clientCertificateData": "pem"}, 0, r"neither a token nor a client certificate with its key"),
        ({"token": 7}, 0, r"login' failed: Expected `str`, got `int` - at `\$\.token`"),
    ],
)
def test_failing_plugin_is_an_error(
    status: dict[str, object], exit_code: int, message: str, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """Without credentials from the plug-in no request goes out, and its own words are shown."""
    plugin = write_plugin(tmp_path / "login", status, exit_code=exit_code)
    path = write_kubeconfig({"server": "http://127.0.0.1:1"}, {"exec": plugin})

    with pytest.raises(SourceError, match=message):
        read_cluster(ClusterConnection(kubeconfig=str(path)), node_name="node1")


def test_missing_plugin_shows_its_install_hint(write_kubeconfig: KubeconfigWriter) -> None:
    """A plug-in that is not installed is named, with the hint of the kubeconfig."""
    plugin = {"apiVersion": API_VERSION, "command": "no-such-login", "installHint": "see\nexample.org"}
    path = write_kubeconfig({"server": "http://127.0.0.1:1"}, {"exec": plugin})

    with pytest.raises(SourceError, match=r"plug-in 'no-such-login' does not exist: see example\.org"):
        read_cluster(ClusterConnection(kubeconfig=str(path)), node_name="node1")


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ({"certificate-authority": ""}, {}, "certificate is not trusted .* certificate-authority of context main of"),
        ({"tls-server-name": "other"}, {"token": "good"}, "certificate is not trusted .*not valid for other"),
        ({}, {"token": "go\nod"}, "the credentials hold characters that no HTTP header may hold"),
        ({"certificate-authority": "gone.crt"}, {}, r"context main of .*: File does not exist: .*gone\.crt"),
        ({"certificate-authority-data": "bm8="}, {}, "a certificate of context main of .* cannot be used .* to be PEM"),
        ({"proxy-url": "http://127.0.0.1:1"}, {"token": "good"}, "the proxy on the way fails .*proxy-url of context"),
    ],
)
def test_tls_trouble_names_the_setting(
    cluster: dict[str, object],
    user: dict[str, object],
    message: str,
    secure_server: ApiServer,
    authority: CertificateAuthority,
    write_kubeconfig: KubeconfigWriter,
) -> None:
    """Whatever is wrong with certificates and credentials is one error that says where it was configured."""
    path = write_kubeconfig({**trusted(secure_server, authority), **cluster}, user)

    with pytest.raises(SourceError, match=message) as caught:
        read_cluster(ClusterConnection(kubeconfig=str(path)), node_name="node1")

    assert "od'" not in str(caught.value)


def test_wrong_scheme_is_recognised(api_server: ApiServer, secure_server: ApiServer, waits: list[float]) -> None:
    """TLS to a plain port, and plain HTTP to a TLS port, are told apart from other trouble."""
    messages = []
    for address in (f"https://127.0.0.1:{api_server.port}", f"http://127.0.0.1:{secure_server.port}"):
        with pytest.raises(SourceError) as caught:
            read_cluster(ClusterConnection(master=address), node_name="node1", sleep=waits.append)
        messages.append(str(caught.value))

    assert "the server speaks plain HTTP, not TLS" in messages[0]
    assert "is https:// meant?" in messages[1]


def test_server_that_insists_on_a_certificate_is_named(
    authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, waits: list[float]
) -> None:
    """Without the client certificate that a server demands there is no list, and the server is named."""
    context = authority.server_context(authority.issue("server"), clients=ssl.CERT_REQUIRED)
    with ApiServer(tls=context) as server:
        path = write_kubeconfig(trusted(server, authority), {})
        with pytest.raises(SourceError, match=f"{server.url}: "):
            read_cluster(ClusterConnection(kubeconfig=str(path)), node_name="node1", sleep=waits.append)


def test_missing_credentials_are_told_from_missing_rights(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter
) -> None:
    """Who arrives as system:anonymous is told that the kubeconfig has no usable credentials."""
    path = write_kubeconfig(trusted(secure_server, authority), {})

    with pytest.raises(SourceError, match=r"403, the request carried no credentials \(system:anonymous\)"):
        read_cluster(ClusterConnection(kubeconfig=str(path)), node_name="node1")


def test_requests_go_through_the_proxy_of_the_environment(
    api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY is obeyed, and NO_PROXY exempts from it."""
    monkeypatch.setenv("http_proxy", api_server.url)
    read_cluster(ClusterConnection(master="http://api.invalid"), node_name="node1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    read_cluster(ClusterConnection(master=api_server.url), node_name="node1")

    hosts = {request.headers["host"] for request in api_server.requests}

    assert hosts == {"api.invalid", f"127.0.0.1:{api_server.port}"}
