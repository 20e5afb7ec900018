"""
The pod's container, as a kubelet and a container runtime would make it, against a real HTTPS server and a real kernel.

A container here is a process with the namespaces (network, mounts), the read-only file systems and the capabilities
that its manifest asks for. The command line is that of the DaemonSet, word by word: only the program comes from this
environment. The volume holds the ConfigMap, byte by byte: only the address of the server is filled in.
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import yaml

from kproxy_ipt.config.model import Config
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.certificates import CertificateAuthority
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.probe import probe

pytestmark = pytest.mark.kernel

_PROGRAM = str(Path(sys.executable).with_name("kproxy-ipt"))
_RUN, _SYNC = (_PROGRAM, "run"), (_PROGRAM, "sync", "--once")
_TOKEN, _ACCOUNT = "of-the-pod", "system:serviceaccount:kube-system:kube-proxy"
_CLUSTER_IP_RULE = "demo/web:http cluster IP"
_MISSING_PRIVILEGE = 7
_PATIENCE_S = 60.0

# $1 is a folder with the volumes, $2 the capabilities for setpriv. What is no volume is read-only, as is /proc/sys in
# every container without `privileged`. Nothing of it is seen outside of the mount namespace.
_CONTAINER = """
set -euo pipefail
volumes=$1 capabilities=$2
shift 2
for folder in /run /var/run /var/lib; do mount -t tmpfs tmpfs "$folder"; done
mkdir -p /var/lib/kube-proxy /var/run/secrets/kubernetes.io/serviceaccount
touch /run/xtables.lock
mount --bind "$volumes/kube-proxy" /var/lib/kube-proxy
mount --bind "$volumes/serviceaccount" /var/run/secrets/kubernetes.io/serviceaccount
for place in /run/xtables.lock /proc/sys /tmp; do mount --bind "$place" "$place"; done
for place in /proc/sys /tmp /run /var/lib /; do mount -o remount,bind,ro "$place"; done
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="-all$capabilities" -- "$@"
"""

_Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """The authority whose certificate the kubelet gives to every pod."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program")
    return CertificateAuthority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["nft", "legacy"])
def backend(request: pytest.FixtureRequest) -> str:
    """The backend that the host uses."""
    return str(request.param)


@pytest.fixture
def host(backend: str) -> Iterator[str]:
    """The network namespace of a node, in which the kubelet has left its trace in the tables of one backend."""
    with temporary_namespace("pod") as netns:
        with inside(netns):
            subprocess.run([f"iptables-{backend}", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"], check=True)
        yield netns


@pytest.fixture
def server(host: str, authority: CertificateAuthority, manifests: Path) -> Iterator[ApiServer]:
    """An API server that the node reaches on its loopback; it holds the examples and knows the pod's token."""
    running = ApiServer(tls=authority.server_context(authority.issue("server")), tokens={_TOKEN: _ACCOUNT})
    for path in sorted((manifests / "examples").glob("*.yaml")):
        running.put(*yaml.safe_load_all(path.read_text(encoding="utf-8")))
    with inside(host):
        running.start()
    yield running
    running.stop()


@pytest.fixture
def volumes(base: Mapping[str, Any], server: ApiServer, authority: CertificateAuthority, tmp_path: Path) -> Path:
    """The folders that the kubelet would mount: the ConfigMap, and the credentials of the ServiceAccount."""
    for folder in ("kube-proxy", "serviceaccount"):
        (tmp_path / folder).mkdir()
    for key, text in base["ConfigMap"]["data"].items():
        filled = text.replace("https://kubernetes.invalid:6443", server.url)
        (tmp_path / "kube-proxy" / key).write_text(filled, encoding="utf-8")
    (tmp_path / "serviceaccount" / "token").write_text(_TOKEN)
    (tmp_path / "serviceaccount" / "ca.crt").write_bytes(authority.certificate.read_bytes())
    return tmp_path


@pytest.fixture
def start(container: Mapping[str, Any], volumes: Path, host: str) -> Iterator[_Start]:
    """Start the DaemonSet's container on the node: `start(program, capabilities)`; output goes to `volumes/log`."""
    started: list[subprocess.Popen[str]] = []
    granted = container["securityContext"]["capabilities"]["add"]
    kubelet_says = {"NODE_NAME": "n1", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    environment = kubelet_says | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "HOME": "/"}

    def run(program: Sequence[str], capabilities: Sequence[str] = granted) -> subprocess.Popen[str]:
        words = [re.sub(r"\$\((\w+)\)", lambda name: kubelet_says[name[1]], word) for word in container["command"]]
        assert words[0] == "/usr/local/bin/kube-proxy"
        bounding = "".join(f",+{name.lower()}" for name in capabilities)
        confined = ["unshare", "--mount", "bash", "-c", _CONTAINER, "container", str(volumes), bounding]
        with inside(host), (volumes / "log").open("w") as log:
            process = subprocess.Popen(
                [*confined, *program, *words[1:]], stdout=log, stderr=log, text=True, env=environment, cwd="/"
            )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def saved(host: str, backend: str) -> Callable[[], str]:
    """What the save program of the backend prints on the node, without comments and counters."""

    def save() -> str:
        with inside(host):
            printed = subprocess.run([f"iptables-{backend}-save"], capture_output=True, text=True, check=True).stdout
        return re.sub(r"^#.*\n|\[\d+:\d+\]", "", printed, flags=re.MULTILINE)

    return save


def _healthz(host: str) -> int:
    """The status that a probe would see; 0 while nobody answers."""
    port = int(Config().healthz_bind_address.rpartition(":")[2])
    with inside(host), suppress(OSError):
        return probe("127.0.0.1", port, "/healthz").status
    return 0


def _wait_until(reached: Callable[[], bool], process: subprocess.Popen[str], log: Path) -> None:
    """Ask until it is so; fail with the log when the process ends or patience does."""
    deadline = monotonic() + _PATIENCE_S
    while not reached():
        with suppress(subprocess.TimeoutExpired):
            pytest.fail(f"ended with code {process.wait(0.05)}:\n{log.read_text()}")
        if monotonic() > deadline:
            pytest.fail(f"not within {_PATIENCE_S} s:\n{log.read_text()}")


def _forbidden(role: Mapping[str, Any], server: ApiServer) -> list[str]:
    """The requests so far that the ClusterRole does not allow, as `VERB group/resource`."""
    rights = {
        f"{verb} {group}/{resource}"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked = []
    for request in server.requests:
        path = re.fullmatch(r"/(?:api|apis/([^/]+))/v1(?:/namespaces/[^/]+)?/([^/]+)(/[^/]+)?", request.path)
        assert path, request.path
        reading = "watch" if request.is_watch else "get" if path[3] else "list"
        verb = {"POST": "create", "PATCH": "patch", "PUT": "update"}.get(request.method, reading)
        asked.append(f"{verb} {path[1] or ''}/{path[2]}")
    return [request for request in asked if request not in rights]


@pytest.mark.skipif(importlib.util.find_spec("kproxy_ipt_cli.run") is None, reason="the command run is not there yet")
def test_daemon_of_the_daemonset_serves_until_it_is_told_to_end(
    base: Mapping[str, Any],
    start: _Start,
    host: str,
    server: ApiServer,
    volumes: Path,
    saved: Callable[[], str],
) -> None:
    """It is healthy and has written the rules; after SIGTERM it ends well, and the rules stay."""
    log = volumes / "log"

    process = start(_RUN)

    _wait_until(lambda: _healthz(host) == 200 and _CLUSTER_IP_RULE in saved(), process, log)
    before = saved()
    process.send_signal(signal.SIGTERM)
    assert process.wait(_PATIENCE_S) == 0, log.read_text()
    assert saved() == before
    assert _forbidden(base["ClusterRole"], server) == []
    assert {request.user for request in server.requests} == {_ACCOUNT}


def test_privileges_of_the_container_are_enough(
    base: Mapping[str, Any], start: _Start, server: ApiServer, volumes: Path, saved: Callable[[], str]
) -> None:
    """A single sync with the DaemonSet's command line: rules are written, and nothing is asked that RBAC forbids."""
    code = start(_SYNC).wait(60)

    assert code == 0, (volumes / "log").read_text()
    assert _CLUSTER_IP_RULE in saved()
    assert server.requests
    assert _forbidden(base["ClusterRole"], server) == []


@pytest.mark.parametrize(
    ("backend", "capability"),
    [("nft", "NET_ADMIN"), ("legacy", "NET_ADMIN"), ("legacy", "NET_RAW")],
    indirect=["backend"],
)
def test_each_capability_is_needed(
    container: Mapping[str, Any], start: _Start, volumes: Path, saved: Callable[[], str], capability: str
) -> None:
    """Without one of them the kernel refuses, and the message says that a privilege is missing."""
    others = [name for name in container["securityContext"]["capabilities"]["add"] if name != capability]
    before = saved()

    code = start(_SYNC, others).wait(60)

    assert code == _MISSING_PRIVILEGE, (volumes / "log").read_text()
    assert saved() == before
