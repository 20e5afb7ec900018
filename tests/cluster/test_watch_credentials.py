"""Facts about credentials of a source that runs for weeks: tokens expire, certificates are exchanged."""

import asyncio
import json
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy_ipt.objects.events import Kind
from kproxy_ipt.sources.kubeconfig import ClusterConnection
from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.api_watching import SourceRun
from kproxy_ipt.testing.certificates import CertificateAuthority, IssuedCertificate
from kproxy_ipt.testing.objects import service

KubeconfigWriter = Callable[..., Path]


def watching(path: Path) -> SourceRun:
    """A source with the credentials of a kubeconfig."""
    return SourceRun(ClusterConnection(kubeconfig=str(path), qps=-1))


def trusted(server: ApiServer, authority: CertificateAuthority) -> dict[str, object]:
    """The cluster entry of a kubeconfig for *server*."""
    return {"server": server.url, "certificate-authority": str(authority.certificate)}


def exchange(target: Path, source: IssuedCertificate) -> None:
    """Put another certificate and key in the place of `client.crt` and `client.key`, as the kubelet does."""
    for name, path in (("client.crt", source.certificate), ("client.key", source.key)):
        (target / "next").write_bytes(path.read_bytes())
        (target / "next").replace(target / name)


async def follows_after(server: ApiServer, run: SourceRun, change: Callable[[], None]) -> None:
    """Watch, change the credentials, end the watches, and wait until the source follows again."""
    async with run:
        await run.until(lambda: run.lists(Kind.SERVICES) == 1 and server.watches() == 3)
        change()
        run.time.now += 300
        server.end_watches()
        server.put(service("late"))
        await run.until(lambda: run.names(Kind.SERVICES) == ["late"])
        await run.until(lambda: server.watches() == 3)


def test_expired_token_is_read_anew_without_a_word(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """The kubelet has rotated the token: one refused request, and no trouble."""
    (tmp_path / "token").write_text("good\n")
    run = watching(write_kubeconfig(trusted(secure_server, authority), {"tokenFile": "token"}))

    def rotate() -> None:
        (tmp_path / "token").write_text("better")
        secure_server.tokens = {"better": "rotated"}

    asyncio.run(follows_after(secure_server, run, rotate))

    assert secure_server.requests[-1].user == "rotated"
    assert run.troubles(Kind.SERVICES) == []
    assert run.lists(Kind.SERVICES) == 1


def test_token_that_is_not_replaced_is_trouble_until_it_is(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """As long as the server refuses us we say so, and recover as soon as the file is right."""
    (tmp_path / "token").write_text("stale")
    run = watching(write_kubeconfig(trusted(secure_server, authority), {"tokenFile": "token"}))

    async def scenario() -> None:
        async with run:
            await run.until(lambda: len(run.troubles(Kind.SERVICES)) > 1)
            (tmp_path / "token").write_text("good")
            await run.until(lambda: all(run.lists(kind) for kind in Kind))

    asyncio.run(scenario())

    assert "watch services: 401, the credentials of context main" in run.troubles(Kind.SERVICES)[0]


def test_exchanged_client_certificate_is_used_for_the_next_request(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """New files are noticed without any refusal; requests under way end in peace."""
    exchange(tmp_path, authority.issue("first"))
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    run = watching(write_kubeconfig(trusted(secure_server, authority), user))
    second = authority.issue("second")

    asyncio.run(follows_after(secure_server, run, lambda: exchange(tmp_path, second)))

    assert {request.user for request in secure_server.requests[:3]} == {"first"}
    assert {request.user for request in secure_server.requests[3:]} == {"second"}
    assert run.troubles(Kind.SERVICES) == []


def test_files_that_do_not_fit_together_leave_the_old_certificate_in_use(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """Between the exchange of the certificate and that of its key nothing breaks."""
    exchange(tmp_path, authority.issue("first"))
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    run = watching(write_kubeconfig(trusted(secure_server, authority), user))
    other = authority.issue("other")

    def exchange_half() -> None:
        (tmp_path / "client.key").write_bytes(other.key.read_bytes())

    asyncio.run(follows_after(secure_server, run, exchange_half))

    assert {request.user for request in secure_server.requests} == {"first"}
    assert run.troubles(Kind.SERVICES) == []


def test_rewritten_kubeconfig_is_read_anew(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter
) -> None:
    """A token that stands in the kubeconfig itself is exchanged with it."""
    secure_server.tokens["better"] = "rotated"
    run = watching(write_kubeconfig(trusted(secure_server, authority), {"token": "good"}))

    def rewrite() -> None:
        write_kubeconfig(trusted(secure_server, authority), {"token": "better"})

    asyncio.run(follows_after(secure_server, run, rewrite))

    assert secure_server.requests[-1].user == "rotated"


def test_plugin_is_run_again_after_a_refusal(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """A credential plug-in gives the next token as soon as the server refuses the last one; once for all kinds."""
    credential = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1"}
    (tmp_path / "answer").write_text(json.dumps({**credential, "status": {"token": "good"}}))
    plugin = tmp_path / "login"
    plugin.write_text('#!/bin/sh\ncd "$(dirname "$0")"; echo run >> runs; cat answer\n')
    plugin.chmod(0o755)
    entry = {"apiVersion": credential["apiVersion"], "command": "./login", "interactiveMode": "Never"}
    run = watching(write_kubeconfig(trusted(secure_server, authority), {"exec": entry}))

    def rotate() -> None:
        (tmp_path / "answer").write_text(json.dumps({**credential, "status": {"token": "better"}}))
        secure_server.tokens = {"better": "rotated"}

    asyncio.run(follows_after(secure_server, run, rotate))

    assert secure_server.requests[-1].user == "rotated"
    assert (tmp_path / "runs").read_text() == "run\nrun\n"
    assert run.troubles(Kind.SERVICES) == []


def test_exchanged_server_certificate_is_followed(
    authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter, tmp_path: Path
) -> None:
    """A server that comes back with the certificate of another authority is trusted as soon as the file says so."""
    (tmp_path / "ca.crt").write_bytes(authority.certificate.read_bytes())
    (tmp_path / "other").mkdir()
    other = CertificateAuthority.create(tmp_path / "other", "other")
    context = authority.server_context(authority.issue("server"), clients=ssl.CERT_OPTIONAL)
    with ApiServer(tls=context, tokens={"good": "me"}) as server:
        cluster = {"server": "", "certificate-authority": str(tmp_path / "ca.crt")}
        run = watching(write_kubeconfig({**cluster, "server": server.url}, {"token": "good"}))

        async def scenario() -> None:
            async with run:
                await run.until(lambda: server.watches() == 3)
                server.stop()
                server.tls = other.server_context(other.issue("server"))
                server.start()
                await run.until(lambda: any("not trusted" in text for text in run.troubles(Kind.SERVICES)))
                (tmp_path / "ca.crt").write_bytes(other.certificate.read_bytes())
                await run.until(lambda: server.watches() == 3)

        asyncio.run(scenario())


def test_token_that_no_header_can_hold_is_not_shown(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter
) -> None:
    """The message says where the token stands, and not what it is."""
    run = watching(write_kubeconfig(trusted(secure_server, authority), {"token": "go\nod"}))

    async def scenario() -> None:
        async with run:
            await run.until(lambda: len(run.troubles(Kind.SERVICES)) == 1)

    asyncio.run(scenario())

    assert "the credentials hold characters that no HTTP header may hold" in run.troubles(Kind.SERVICES)[0]
    assert "go" not in run.troubles(Kind.SERVICES)[0].replace("context main", "")


def test_netrc_of_the_user_plays_no_part(
    secure_server: ApiServer, authority: CertificateAuthority, write_kubeconfig: KubeconfigWriter
) -> None:
    """A ~/.netrc with an entry for the server neither adds credentials nor stands in the way of ours."""
    home = Path(os.environ["HOME"])
    home.mkdir(exist_ok=True)
    (home / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    run = watching(write_kubeconfig(trusted(secure_server, authority), {"token": "good"}))

    async def scenario() -> None:
        async with run:
            await run.until(lambda: run.lists(Kind.SERVICES) == 1)

    asyncio.run(scenario())

    assert secure_server.requests[0].headers["authorization"] == "Bearer good"


@pytest.mark.parametrize(("exempt", "is_exempt"), [("127.0.0.0/8", True), ("10.0.0.0/8", False)])
def test_proxy_of_the_environment_is_that_of_the_blocking_client(
    exempt: str,
    is_exempt: bool,  # noqa: FBT001  # a table
    api_server: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HTTP_PROXY is obeyed, and NO_PROXY exempts addresses and prefixes."""
    with ApiServer() as proxy:
        proxy.schedule(Fault.unavailable(), times=999)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", exempt)
        run = SourceRun(ClusterConnection(master=api_server.url, qps=-1))

        async def scenario() -> None:
            async with run:
                await run.until(lambda: len(api_server.requests if is_exempt else proxy.requests) >= 3)

        asyncio.run(scenario())

    assert bool(proxy.requests) is not is_exempt


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:1", "connection refused: does the API server run there"),
        ("https://127.0.0.1:1", "connection refused: does the API server run there"),
        ("http://api.invalid", "the host name cannot be resolved"),
    ],
)
def test_unreachable_server_is_named(address: str, message: str) -> None:
    """The words are those of the blocking client."""
    run = SourceRun(ClusterConnection(master=address, qps=-1))

    async def scenario() -> None:
        async with run:
            await run.until(lambda: len(run.troubles(Kind.SERVICES)) == 1)

    asyncio.run(scenario())

    assert run.troubles(Kind.SERVICES)[0].startswith(f"{address}: {message}")


def test_wrong_scheme_is_recognised(api_server: ApiServer) -> None:
    """TLS to a plain port is told apart from other trouble."""
    run = SourceRun(ClusterConnection(master=f"https://127.0.0.1:{api_server.port}", qps=-1))

    async def scenario() -> None:
        async with run:
            await run.until(lambda: len(run.troubles(Kind.SERVICES)) == 1)

    asyncio.run(scenario())

    assert "the server speaks plain HTTP, not TLS" in run.troubles(Kind.SERVICES)[0]
