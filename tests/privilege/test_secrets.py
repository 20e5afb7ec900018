"""
Tokens, keys and passwords are never shown: a canary in every place where they can stand, and a run that fails.

The daemon runs with the highest verbosity and with its debug pages on. Whatever it prints and whatever its pages show
is searched for the canary, as it is and in the spellings that protocols make of it.
"""

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from kproxy_ipt.testing.api_faults import Fault
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.daemon_process import METRICS_PORT, PATIENCE_S, DaemonProcess, kproxy_ipt_program, wait_until
from kproxy_ipt.testing.lab_objects import own_node
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.objects import endpoint_slice, service

pytestmark = pytest.mark.kernel

CANARY = "c4n4ry-s3cret-t0ken"
_BASE64 = base64.b64encode(CANARY.encode()).decode()
_SPELLINGS = (CANARY, _BASE64, _BASE64.rstrip("="), quote(CANARY), CANARY.upper(), repr(CANARY)[1:-1])
_PAGES = ("/configz", "/flagz", "/statusz", "/metrics", "/debug/pprof/cmdline", "/debug/pprof/goroutine")

# What stands under `user:` or `cluster:` of the kubeconfig; SERVER and FOLDER are filled in.
USERS = {
    "token that is refused": f"{{token: {CANARY}}}",
    "token that no header can hold": f'{{token: "{CANARY}\\n{CANARY}"}}',
    "token that is no text": f"{{token: [{CANARY}]}}",
    "token file": "{tokenFile: FOLDER/secret}",
    "token file that is no token": "{tokenFile: FOLDER/odd-secret}",
    "password": f"{{username: admin, password: {CANARY}}}",
    "key that is none": f"{{client-certificate-data: {_BASE64}, client-key-data: {_BASE64}}}",
    "key that is no base64": f"{{client-certificate-data: '{CANARY}', client-key-data: '!{CANARY}'}}",
    "key file that is none": "{client-certificate: FOLDER/secret, client-key: FOLDER/secret}",
    "plug-in whose token is refused": "{exec: {apiVersion: client.authentication.k8s.io/v1, command: FOLDER/good, "
    f"interactiveMode: Never, env: [{{name: PASSWORD, value: {CANARY}}}]}}}}",
    "plug-in that prints no JSON": "{exec: {apiVersion: client.authentication.k8s.io/v1, command: FOLDER/bad, "
    f"interactiveMode: Never, args: [--password={CANARY}]}}}}",
    "plug-in that prints a wrong type": "{exec: {apiVersion: client.authentication.k8s.io/v1, command: FOLDER/typed, "
    "interactiveMode: Never}}",
    "plug-in that fails": "{exec: {apiVersion: client.authentication.k8s.io/v1, command: FOLDER/failing, "
    f"interactiveMode: Never, args: [--password={CANARY}]}}}}",
    "alias": f"{{token: *{CANARY}}}",
    "tag": f"{{token: !{CANARY} x}}",
    "open quote": f'{{token: "{CANARY}',
    "wrong indent": f"\n   token: {CANARY}\n  {CANARY}: x",
    "user that is none": CANARY,
    "control character": f"{{token: {CANARY}\x01}}",
}
SERVERS = {
    "password in the address": f"http://admin:{CANARY}@127.0.0.1:1",
    "password in an address without port": f"http://admin:{CANARY}@",
    "password in a query": f"http://127.0.0.1:1/?token={CANARY}",
    "password in an odd address": f"ftp://admin:{CANARY}@127.0.0.1:1",
    "password in a broken address": f"http://admin:{CANARY}@127.0.0.1:port",
    "password in a broken host": f"http://admin:{CANARY}@[::1",
}
_NO_SOURCE = 5
_STATUS = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
_PLUGINS = {
    "good": json.dumps({**_STATUS, "status": {"token": CANARY}}),
    "bad": f"{CANARY} {{",
    "typed": json.dumps({**_STATUS, "status": {"token": {CANARY: CANARY}, "expirationTimestamp": CANARY}}),
}


@pytest.fixture
def netns() -> Iterator[str]:
    """The namespace whose rules the daemon writes."""
    with temporary_namespace("secret") as name:
        yield name


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A server that knows another token, and answers its share of requests with faults."""
    web = service("web")
    with ApiServer(tokens={"another": "me"}) as server:
        server.put(own_node(), web, endpoint_slice(web))
        yield server


@pytest.fixture
def write(tmp_path: Path, api: ApiServer) -> Callable[[str, str], Path]:
    """Write a kubeconfig with the text of a user and of a cluster, and all files that it may name."""
    (tmp_path / "secret").write_text(CANARY)
    (tmp_path / "odd-secret").write_bytes(CANARY.encode() + b"\xff\n\n" + CANARY.encode())
    for name, printed in _PLUGINS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
    (tmp_path / "failing").write_text("#!/bin/sh\necho go away >&2\nexit 3\n")
    for name in (*_PLUGINS, "failing"):
        (tmp_path / name).chmod(0o700)

    def kubeconfig(user: str, cluster: str = "{server: SERVER}") -> Path:
        text = f"""
apiVersion: v1
kind: Config
current-context: main
contexts: [{{name: main, context: {{cluster: main, user: main}}}}]
clusters:
- name: main
  cluster: {cluster}
users:
- name: main
  user: {user}
"""
        path = tmp_path / "kubeconfig"
        path.write_text(text.replace("SERVER", api.url).replace("FOLDER", str(tmp_path)))
        return path

    return kubeconfig


@pytest.fixture
def seen(netns: str, tmp_path: Path, api: ApiServer) -> Callable[..., str]:
    """Run the daemon with these arguments into trouble, ask all its pages, and give everything that could be read."""
    config = tmp_path / "config.yaml"
    version = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    config.write_text(f"{version}enableProfiling: true\nlogging: {{verbosity: 10}}\n")

    def run(*arguments: str) -> str:
        shown: list[str] = []
        with DaemonProcess(netns, "--config", str(config), *arguments) as daemon:
            try:
                wait_until(
                    lambda: api.requests or daemon.log("source") or not daemon.is_alive, "it asks, or says why not"
                )
                daemon.wait_for_log("source", timeout_s=5)
                shown += [daemon.get(page, METRICS_PORT).body.decode() for page in _PAGES]
                shown.append(daemon.get("/healthz?verbose").body.decode())
                api.stop()
                daemon.wait_for_log("source", count=2, timeout_s=5)
            except (RuntimeError, TimeoutError, ConnectionError):
                pass  # ended at once, or has nothing more to say: what it said counts
            lines = daemon.lines
        assert lines
        return "\n".join([*lines, *shown])

    return run


def _assert_clean(text: str) -> None:
    for spelling in _SPELLINGS:
        assert spelling not in text, next(line for line in text.splitlines() if spelling in line)


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_no_secret_of_a_user_is_shown(user: str, write: Callable[..., Path], seen: Callable[..., str]) -> None:
    """Neither the credentials nor what a parser says about them."""
    _assert_clean(seen("--kubeconfig", str(write(user))))


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_no_password_of_an_address_is_shown(server: str, write: Callable[..., Path], seen: Callable[..., str]) -> None:
    """In a kubeconfig, or on the command line."""
    _assert_clean(seen("--kubeconfig", str(write("{token: x}", f'{{server: "{server}"}}'))))
    _assert_clean(seen("--master", server))


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_no_secret_is_shown_by_a_command(user: str, write: Callable[..., Path]) -> None:
    """A command that reads the cluster once and fails: in words, with a code of its own, without traceback."""
    command = [kproxy_ipt_program(), "render", "--kubeconfig", str(write(user)), "--family", "ipv4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.returncode == _NO_SOURCE, done.stderr
    assert "Traceback" not in done.stderr
    _assert_clean(done.stdout + done.stderr)


def test_faults_of_the_server_show_no_token(
    api: ApiServer, write: Callable[..., Path], seen: Callable[..., str]
) -> None:
    """A token that works, and answers that fail in all ways: none of them brings it to light."""
    api.tokens = {CANARY: "me"}
    for fault in (Fault.server_error(), Fault.cut(), Fault.unavailable(), Fault.too_many_requests(retry_after_s=0)):
        api.schedule(fault, path="/services")

    text = seen("--kubeconfig", str(write(f"{{token: {CANARY}}}")))

    assert '"source"' in text
    assert any(request.user == "me" for request in api.requests)
    _assert_clean(text)
