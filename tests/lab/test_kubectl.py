"""What a real kubectl does with a lab, and what real connections say about it."""

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from kproxy_ipt.lab.state import read_state
from kproxy_ipt.testing.daemon_process import wait_until

from .conftest import RunningLab

pytestmark = pytest.mark.kernel
_SHOP = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: shop
          image: any
          ports:
            - {name: http, containerPort: 8080}
            - {name: echo, containerPort: 9000, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec:
  type: LoadBalancer
  selector: {app: shop}
  ports: [{name: http, port: 80, targetPort: http}]
"""

_NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n"


@pytest.fixture
def shop(lab: RunningLab) -> RunningLab:
    """A lab in which the shop is as it was applied: two pods that answer."""
    lab.kubectl("delete", "deployment/shop", "service/shop", "--ignore-not-found")
    wait_until(lambda: not [name for name in lab.namespaces() if "-shop-" in name], "the shop of before is gone")
    lab.kubectl("apply", "-f", "-", stdin=_SHOP)
    lab.kubectl("rollout", "status", "deployment/shop", "--timeout=20s")
    wait_until(lambda: set(lab.answers("shop", "-n", "20")) == {"shop-1", "shop-2"}, "both pods answer")
    return lab


def _eventually(lab: RunningLab, names: set[str], *arguments: str) -> None:
    wait_until(lambda: set(lab.answers(*arguments)) == names, f"only {names} answer {arguments}")


def test_get_prints_the_columns_that_people_know(lab: RunningLab) -> None:
    """Services with their ports, slices with their endpoints."""
    printed = lab.kubectl("get", "svc,endpointslices")

    lines = [line.split() for line in printed.splitlines()]
    assert lines[0] == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"]
    assert lines[1][:5] == ["service/web", "NodePort", "10.96.0.10", "<none>", "80:32080/TCP"]
    assert {line[1] for line in lines[4:]} == {"IPv4", "IPv6"}
    assert "10.244.1.11,10.244.2.11,10.244.1.12" in printed


def test_wide_shows_address_and_node_of_pods(lab: RunningLab) -> None:
    """`-o wide` has more columns, a selector fewer rows."""
    wide = lab.kubectl("get", "pods", "-o", "wide", "-l", "app in (web)")

    assert [line.split()[0:3] + line.split()[5:7] for line in wide.splitlines()[1:]] == [
        ["web-1", "1/1", "Running", "10.244.1.11", "n1"],
        ["web-2", "1/1", "Running", "10.244.2.11", "n2"],
        ["web-3", "1/1", "Running", "10.244.1.12", "n1"],
    ]


def test_applied_objects_answer_to_the_client(shop: RunningLab) -> None:
    """A Deployment and a Service by `kubectl apply`, requests by `lab curl`, shared evenly."""
    answers = shop.answers("shop", "-n", "200")

    assert set(answers) == {"shop-1", "shop-2"}
    assert min(answers.values()) > 60


def test_applying_again_changes_nothing(shop: RunningLab) -> None:
    """What the API filled in is no difference."""
    printed = shop.kubectl("apply", "-f", "-", stdin=_SHOP)

    assert printed.splitlines() == ["deployment.apps/shop unchanged", "service/shop unchanged"]


def test_applying_a_changed_port_replaces_it(shop: RunningLab) -> None:
    """The merge goes by port number: the old entry is gone, the node port of the new one is another's or its own."""
    shop.kubectl("apply", "-f", "-", stdin=_SHOP.replace("port: 80,", "port: 81,"))

    ports = json.loads(shop.kubectl("get", "svc", "shop", "-o", "json"))["spec"]["ports"]
    assert [port["port"] for port in ports] == [81]
    _eventually(shop, {"shop-1", "shop-2"}, "shop", "--port", "81", "-n", "20")


def test_requests_wait_for_rules_that_are_about_to_be_written(lab: RunningLab) -> None:
    """Right after `apply` and `rollout status` nobody is left without an answer."""
    lab.kubectl("apply", "-f", "-", stdin=_SHOP.replace("shop", "soon"))
    lab.kubectl("rollout", "status", "deployment/soon", "--timeout=30s")

    answers = lab.answers("soon", "-n", "20")
    lab.kubectl("delete", "deployment/soon", "service/soon")

    assert set(answers) <= {"soon-1", "soon-2"}


def test_scaling_changes_who_answers(shop: RunningLab) -> None:
    """One pod is left of two; then there are three."""
    shop.kubectl("scale", "deployment/shop", "--replicas=1")
    _eventually(shop, {"shop-1"}, "shop")

    shop.kubectl("scale", "deployment/shop", "--replicas=3")

    _eventually(shop, {"shop-1", "shop-2", "shop-3"}, "shop", "-n", "40")


def test_a_pod_that_is_not_ready_gets_no_requests(shop: RunningLab) -> None:
    """The annotation takes the pod out of the Service, and removing it brings the pod back."""
    shop.kubectl("annotate", "pod", "shop-1", "kproxy-ipt.lab/ready=false")
    _eventually(shop, {"shop-2"}, "shop")

    shop.kubectl("annotate", "pod", "shop-1", "kproxy-ipt.lab/ready-")

    _eventually(shop, {"shop-1", "shop-2"}, "shop", "-n", "20")


def test_a_pod_that_loses_its_label_is_replaced(shop: RunningLab) -> None:
    """It goes on without the Service; another one takes its place."""
    shop.kubectl("label", "pod", "shop-1", "app=other", "--overwrite")

    _eventually(shop, {"shop-2", "shop-3"}, "shop", "-n", "20")
    assert shop.answers("shop-1") == {"shop-1": 10}
    shop.kubectl("delete", "pod", "shop-1")


def test_a_deleted_pod_is_replaced(shop: RunningLab) -> None:
    """Deleting waits until it is gone; two pods answer all the same."""
    shop.kubectl("delete", "pod", "shop-2")

    assert len(shop.kubectl("get", "pods", "-l", "app=shop", "-o", "name").split()) == 2


def test_external_policy_local_keeps_the_address_of_the_client(shop: RunningLab) -> None:
    """A strategic merge patch; the pods then see the client itself."""
    shop.kubectl("patch", "svc", "shop", "-p", '{"spec":{"externalTrafficPolicy":"Local"}}')

    def seen() -> set[str]:
        report = json.loads(shop.run("curl", "shop", "--output", "json").stdout)["curl"]
        return {address for each in report["answers"] for address in each["seen"]}

    wait_until(lambda: seen() == {"192.0.2.50"}, "pods see the client")
    assert int(shop.kubectl("get", "svc", "shop", "-o", "jsonpath={.spec.healthCheckNodePort}")) >= 30000


def test_udp_is_answered_too(shop: RunningLab) -> None:
    """A Service made by `kubectl expose`, with a target port by name."""
    expose = ("expose", "deployment", "shop", "--name=echo", "--port=9", "--target-port=echo", "--protocol=UDP")
    shop.kubectl(*expose)

    _eventually(shop, {"shop-1", "shop-2"}, "echo", "-n", "20")
    shop.kubectl("delete", "svc", "echo")


def test_pods_reach_services_in_both_families(lab: RunningLab) -> None:
    """From a pod to the Service that it is behind, itself included."""
    for family in ("ipv4", "ipv6"):
        assert set(lab.answers("web", "--from", "web-1", "--family", family, "-n", "60")) == {"web-1", "web-2", "web-3"}


def test_a_service_without_endpoints_refuses(lab: RunningLab) -> None:
    """The rules of the node reject, as they would in a cluster; with the Service gone nobody answers at all."""
    lab.kubectl("create", "-f", "-", stdin=_service("lonely", "app: nobody"))

    _eventually(lab, {""}, "lonely")
    report = json.loads(lab.run("curl", "lonely", "--output", "json").stdout)["curl"]
    assert set(report["failures"]) == {"refused"}
    lab.kubectl("delete", "svc", "lonely")


def test_a_manual_slice_is_left_alone(lab: RunningLab) -> None:
    """A Service without selector leads where a slice of its user says."""
    pod = json.loads(lab.kubectl("get", "pod", "web-2", "-o", "json"))["status"]["podIP"]
    lab.kubectl("apply", "-f", "-", stdin=_service("manual", "") + _slice("manual", pod))

    _eventually(lab, {"web-2"}, "manual")
    lab.kubectl("delete", "svc/manual", "endpointslice/manual-1")


def test_a_refused_service_is_explained(lab: RunningLab) -> None:
    """An address outside of the range is refused in the words of the real API."""
    sent = _service("wrong", "app: web").replace("spec:", "spec:\n  clusterIP: 10.1.2.3")
    program = shutil.which("kubectl") or "kubectl"

    done = subprocess.run(
        [program, "--kubeconfig", str(lab.layout.kubeconfig), "apply", "-f", "-"],
        input=sent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "provided IP is not in the valid range. The range of valid IPs is 10.96.0.0/16" in done.stderr


def test_watching_shows_changes_as_rows(lab: RunningLab) -> None:
    """`get -w` prints the pod, and the pod again when its readiness changes."""
    program = shutil.which("kubectl") or "kubectl"
    command = [
        program,
        "--kubeconfig",
        str(lab.layout.kubeconfig),
        "get",
        "pod",
        "web-3",
        "-w",
        "--request-timeout=30s",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = [watching.stdout.readline() for _ in range(2)]
        lab.kubectl("annotate", "pod", "web-3", "kproxy-ipt.lab/ready=false")
        more = _until(lambda line: "0/1" in line, watching.stdout.readline)
        watching.terminate()
    lab.kubectl("annotate", "pod", "web-3", "kproxy-ipt.lab/ready-")

    assert first[1].split()[:3] == ["web-3", "1/1", "Running"]
    assert more.split()[:3] == ["web-3", "0/1", "Running"]


def test_a_namespace_takes_its_objects_along(lab: RunningLab) -> None:
    """Pods of another namespace have it in their name; all go with it."""
    lab.kubectl("apply", "-f", "-", stdin=_NAMESPACE)
    lab.kubectl("run", "lone", "--image=any", "--port=8080", "-n", "other")
    wait_until(lambda: f"{lab.layout.name}-other-lone" in lab.namespaces(), "the pod runs")
    wait_until(lambda: set(lab.answers("lone.other")) == {"lone"}, "the pod answers")

    lab.kubectl("delete", "namespace", "other")

    wait_until(lambda: f"{lab.layout.name}-other-lone" not in lab.namespaces(), "the pod is gone")


def test_describe_tells_about_a_service(lab: RunningLab) -> None:
    """All that `describe` asks for is answered."""
    printed = lab.kubectl("describe", "svc", "web")

    assert "TargetPort:               http/TCP" in printed
    assert "NodePort:                 http  32080/TCP" in printed
    assert ":8080" in printed


def test_grace_period_keeps_a_pod_answering(lab: RunningLab) -> None:
    """While a pod terminates its endpoint is serving and terminating, and its server goes on."""
    lab.kubectl("run", "slow", "--image=any", "--port=8080", "--labels=app=slow")
    lab.kubectl("apply", "-f", "-", stdin=_service("slow", "app: slow"))
    _eventually(lab, {"slow"}, "slow")

    lab.kubectl("delete", "pod", "slow", "--grace-period=600", "--wait=false")

    slices = ("get", "endpointslices", "-l", "kubernetes.io/service-name=slow", "-o")
    path = "jsonpath={.items[0].endpoints[0].conditions}"
    conditions = {"ready": False, "serving": True, "terminating": True}
    wait_until(lambda: json.loads(lab.kubectl(*slices, path)) == conditions, "the endpoint terminates")
    assert lab.answers("slow") == {"slow": 10}
    lab.kubectl("delete", "pod", "slow", "--grace-period=0", "--force")
    lab.kubectl("delete", "svc", "slow")


def test_a_pod_of_the_host_network_answers_on_its_node(lab: RunningLab) -> None:
    """It has the address of the node, and no namespace of its own."""
    spec = "{hostNetwork: true, nodeName: n2, containers: [{name: a, image: any, ports: [{containerPort: 7070}]}]}"
    lab.kubectl("apply", "-f", "-", stdin=f"apiVersion: v1\nkind: Pod\nmetadata: {{name: own}}\nspec: {spec}\n")

    _eventually(lab, {"own"}, "n2:7070")
    assert f"{lab.layout.name}-own" not in lab.namespaces()
    lab.kubectl("delete", "pod", "own", "--grace-period=0", "--force")


def test_a_pod_that_cannot_start_says_why(lab: RunningLab) -> None:
    """Two containers with the same port: the pod waits, with the reason in its status, and leaves nothing behind."""
    ports = "ports: [{containerPort: 8080}]"
    spec = f"{{containers: [{{name: a, image: any, {ports}}}, {{name: b, image: any, {ports}}}]}}"
    lab.kubectl("apply", "-f", "-", stdin=f"apiVersion: v1\nkind: Pod\nmetadata: {{name: twice}}\nspec: {spec}\n")

    path = "jsonpath={.status.containerStatuses[0].state.waiting.message}"
    wait_until(lambda: "in use" in lab.kubectl("get", "pod", "twice", "-o", path), "the reason is told")
    assert f"{lab.layout.name}-twice" not in lab.namespaces()
    lab.kubectl("delete", "pod", "twice")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "there is no service, pod, node or address 'nothing' in the lab"),
        (("web", "--from", "nowhere"), "there is no place 'nowhere': say client, n1, n2 or a pod"),
        (("web", "--port", "81"), "service web has no port 81; it has 80"),
        (("http://web:x/",), "http://web:x/"),
        (("kubeless.demo", "--from", "n1"), "service kubeless has no cluster IP"),
        (("inner.demo", "--from", "client"), "service inner cannot be reached from outside: say --from n1 or a pod"),
        (("web-1", "--family", "ipv6", "--port", "http", "--from", "n1"), ""),
    ],
)
def test_curl_says_what_it_cannot_find(lab: RunningLab, arguments: tuple[str, ...], message: str) -> None:
    """Targets, places, ports and ways that do not exist, each named; what exists is reached."""
    ports = "ports: [{port: 80}]"
    documents = (
        f"{{name: kubeless, namespace: demo}}\nspec: {{clusterIP: None, {ports}}}",
        f"{{name: inner, namespace: demo}}\nspec: {{{ports}}}",
    )
    lab.kubectl(
        "apply",
        "-f",
        "-",
        stdin="\n---\n".join(f"apiVersion: v1\nkind: Service\nmetadata: {each}\n" for each in documents),
    )

    done = lab.run("curl", *arguments)

    assert (done.returncode, message in done.stderr) == (5 if message else 0, True), done


def test_web_pages_are_turned_away(lab: RunningLab) -> None:
    """Requests with an origin, and those for another host than this one, are no user's of the lab."""
    state = read_state(lab.layout)
    assert state is not None
    statuses = []
    for headers in ({}, {"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        connection = http.client.HTTPConnection("127.0.0.1", state.port, timeout=5.0)
        with closing(connection):
            connection.request("GET", "/api/v1/services", headers=headers)
            statuses.append(connection.getresponse().status)

    assert statuses == [200, 403, 403]


def _until(found: Callable[[str], bool], read: Callable[[], str]) -> str:
    deadline_s = time.monotonic() + 15.0
    while not found(line := read()):
        assert line, "the watch ended"
        assert time.monotonic() < deadline_s
    return line


def _service(name: str, selector: str) -> str:
    selected = f"selector: {{{selector}}}" if selector else "type: ClusterIP"
    return f"""
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  {selected}
  ports: [{{port: 80, targetPort: 8080}}]
"""


def _slice(service: str, address: str) -> str:
    return f"""
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {service}-1
  labels: {{kubernetes.io/service-name: {service}}}
addressType: IPv4
endpoints: [{{addresses: ["{address}"]}}]
ports: [{{port: 8080}}]
"""
