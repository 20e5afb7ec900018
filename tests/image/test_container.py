"""The image as the DaemonSet's container, on a node of a lab: rules are written, packets arrive, SIGTERM ends it."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec
import pytest
import yaml

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.api_server import ApiServer
from kproxy_ipt.testing.certificates import CertificateAuthority
from kproxy_ipt.testing.container import Container, PodContainer
from kproxy_ipt.testing.daemon_process import HEALTH_PORT, wait_until
from kproxy_ipt.testing.image import Image
from kproxy_ipt.testing.lab import Lab
from kproxy_ipt.testing.probe_netns import probe_netns
from kproxy_ipt.testing.topology import CLUSTER_CIDRS

pytestmark = [pytest.mark.kernel, pytest.mark.image]

_ROOT = Path(__file__).parents[2]
_TOKEN, _ACCOUNT = "of-the-pod", "system:serviceaccount:kube-system:kube-proxy"
_PODS = ("podA", "podB", "podC", "podD")  # the examples have endpoints at the third and the fourth
_BEHIND_WEB = {"podC", "podD", "remote"}
_CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
_CLUSTER_IP, _NODE_PORT = "10.96.0.80", 30080
_NOBODY = 65534
_KUBELET_GRACE_S = 30.0

Start = Callable[..., AbstractContextManager[Container]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """The authority whose certificate the kubelet gives to every pod."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program")
    return CertificateAuthority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A node with pods that answer on port 8080, one pod elsewhere, and a client outside."""
    with Lab(_PODS) as made:
        for place in (made.pod("podC"), made.pod("podD"), made.remote):
            place.serve(8080)
        yield made


@pytest.fixture
def server(lab: Lab, authority: CertificateAuthority) -> Iterator[ApiServer]:
    """An API server that the node reaches; it holds the example Services and knows the pod's token."""
    running = ApiServer(tls=authority.server_context(authority.issue("server")), tokens={_TOKEN: _ACCOUNT})
    for path in sorted((_ROOT / "manifests/examples").glob("*.yaml")):
        running.put(*yaml.safe_load_all(path.read_text(encoding="utf-8")))
    with inside(lab.node.netns):
        running.start()
    yield running
    running.stop()


@pytest.fixture
def manifest() -> PodContainer:
    """The container of the DaemonSet, with credentials as every pod has, ConfigMaps read-only as kubelets do."""
    document = yaml.safe_load((_ROOT / "manifests/base/daemonset.yaml").read_text(encoding="utf-8"))
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config_maps = {volume["name"] for volume in pod["volumes"] if "configMap" in volume}
    for mount in container["volumeMounts"]:
        mount["readOnly"] = mount.get("readOnly", False) or mount["name"] in config_maps
    container["volumeMounts"].append({"name": "serviceaccount", "mountPath": _CREDENTIALS, "readOnly": True})
    return msgspec.convert(container, PodContainer)


@pytest.fixture
def volumes(server: ApiServer, authority: CertificateAuthority, tmp_path: Path) -> Mapping[str, Path]:
    """What the kubelet would mount: the ConfigMap with both values filled in, credentials, the node's own places."""
    names = ("kube-proxy", "serviceaccount", "lib-modules")
    found = {name: tmp_path / name for name in names} | {"xtables-lock": tmp_path / "xtables.lock"}
    for name in names:
        found[name].mkdir()
    found["xtables-lock"].touch()
    config_map = yaml.safe_load((_ROOT / "manifests/base/configmap.yaml").read_text(encoding="utf-8"))
    for key, text in config_map["data"].items():
        filled = text.replace("https://kubernetes.invalid:6443", server.url)
        filled = filled.replace('clusterCIDR: ""', f"clusterCIDR: {','.join(CLUSTER_CIDRS.values())}")
        (found["kube-proxy"] / key).write_text(filled, encoding="utf-8")
    (found["serviceaccount"] / "token").write_text(_TOKEN)
    (found["serviceaccount"] / "ca.crt").write_bytes(authority.certificate.read_bytes())
    return found


@pytest.fixture
def start(image: Image, manifest: PodContainer, volumes: Mapping[str, Path], lab: Lab, tmp_path: Path) -> Start:
    """Make the container, ready to be entered: `start(*arguments, user=None)`."""
    environment = dict(line.split("=", 1) for line in image.config.env) | {"NODE_NAME": "n1", "HOME": "/"}
    folder = tmp_path / "container"
    folder.mkdir()

    def make(*arguments: str, user: int | None = None) -> Container:
        return Container(
            image.rootfs,
            manifest,
            folder,
            netns=lab.node.netns,
            volumes=volumes,
            environment=environment,
            arguments=arguments,
            user=user,
        )

    return make


def _healthz(lab: Lab) -> int:
    """The status that a probe would see; 0 while nobody answers."""
    with suppress(OSError):
        return probe_netns(lab.node.netns, "127.0.0.1", HEALTH_PORT, "/healthz").status
    return 0


def _wait_until_in_step(container: Container, lab: Lab) -> None:
    """Wait until the rules of both families stand and `/healthz` says 200; show the log if that never happens."""

    def reached() -> bool:
        return '"in step"' in container.log.read_text() and _healthz(lab) == 200

    try:
        wait_until(lambda: reached() or not container.is_alive, "in step")
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{container.log.read_text()}") from error
    assert container.is_alive, container.log.read_text()


def _answering(lab: Lab, address: str = _CLUSTER_IP, port: int = 80) -> set[str]:
    """Who answers a client outside of the cluster."""
    return set(lab.client.send(address, port, count=60).names)


def _status(container: Container) -> dict[str, str]:
    text = Path(f"/proc/{container.process_id}/status").read_text()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _without_remote(server: ApiServer) -> None:
    """The pod on the other node leaves the Service `web`."""
    documents = yaml.safe_load_all((_ROOT / "manifests/examples/web.yaml").read_text(encoding="utf-8"))
    (ipv4,) = (each for each in documents if each["metadata"]["name"] == "web-ipv4")
    del ipv4["endpoints"][2]
    server.put(ipv4)


@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_container_serves_on_the_backend_of_the_node(
    backend: str, start: Start, lab: Lab, server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the rights of the manifest and no more: packets arrive, changes are followed, rules stay at the end."""
    lab.node.run(f"iptables-{backend}", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    assert _answering(lab) == set()
    began_s = time.monotonic()
    with start() as container:
        _wait_until_in_step(container, lab)
        took_s = time.monotonic() - began_s
        status = _status(container)
        assert (status["CapEff"], status["CapBnd"]) == ("0000000000003000",) * 2
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert "demo/web:http cluster IP" in lab.node.run(f"iptables-{backend}-save")
        assert _answering(lab) == _answering(lab, lab.node.address(), _NODE_PORT) == _BEHIND_WEB
        _without_remote(server)
        wait_until(lambda: _answering(lab) == _BEHIND_WEB - {"remote"}, "the remote pod has left")
        checked = container.run(
            "kproxy-ipt", "check", "--config=/var/lib/kube-proxy/config.conf", "--hostname-override=n1"
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        with capsys.disabled():
            print(f"\ncontainer on {backend}: in step after {took_s:.2f} s; {status['VmHWM']}")  # noqa: T201
        began_s = time.monotonic()
        assert container.stop() == 0, container.log.read_text()
        assert time.monotonic() - began_s < _KUBELET_GRACE_S
    assert _answering(lab) == _BEHIND_WEB - {"remote"}
    assert {request.user for request in server.requests} == {_ACCOUNT}


def test_a_user_other_than_root_is_enough_on_nft(start: Start, lab: Lab, server: ApiServer) -> None:
    """Where the runtime hands capabilities on to it."""
    with start("--backend=nft", user=_NOBODY) as container:
        _wait_until_in_step(container, lab)

        assert _status(container)["Uid"].split() == [str(_NOBODY)] * 4
        assert _answering(lab) == _BEHIND_WEB
        assert container.stop() == 0
    assert server.requests


def test_legacy_tables_can_be_read_without_a_program(start: Start, lab: Lab) -> None:
    """The library that does it finds what it loads at run time: libiptc, and the extensions of Debian's iptables."""
    lab.node.run("iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    script = "from kproxy_ipt.addresses import Family; from kproxy_ipt.kernel.libiptc import save_text"
    with start() as container:
        _wait_until_in_step(container, lab)

        done = container.run("/opt/kproxy-ipt/bin/python", "-c", f"{script}; print(save_text(Family.IPV4, ['nat']))")

        assert '--comment "demo/web:http cluster IP"' in done.stdout, done.stderr


def test_root_file_system_cannot_be_written_to(start: Start, lab: Lab) -> None:
    """Neither its own files nor settings of the kernel; only the lock of the legacy tables can."""
    places = (
        "/opt/x",
        "/tmp/x",
        "/run/x",
        "/var/lib/kube-proxy/x",
        "/proc/sys/net/ipv4/ip_forward",
        "/run/xtables.lock",
    )
    script = "; ".join(f"(echo 1 > {place}) 2>/dev/null && echo {place}" for place in places)
    with start() as container:
        _wait_until_in_step(container, lab)

        assert container.run("sh", "-c", f"{script}; true").stdout.split() == ["/run/xtables.lock"]


def test_name_of_kube_proxy_takes_its_flags(image: Image, start: Start, lab: Lab) -> None:
    """`--version` is answered as kube-proxy answers it, and the program itself has all commands."""
    with start() as container:
        _wait_until_in_step(container, lab)

        assert container.run("/usr/local/bin/kube-proxy", "--version").stdout.startswith("Kubernetes v1.")
        assert "takeover" in container.run(*image.config.entrypoint, "--help").stdout
