"""`explain` from the command line: subjects, text, JSON, and what it ends with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

Invoke = Callable[..., Result]

_WEB = "KUBE-SVC-XRY76EGRC3BSCIIJ"


@pytest.fixture
def explain(invoke: Invoke, examples: Path) -> Callable[..., Result]:
    """Explain one subject of the examples on node n1: `explain("svc/demo/web", "-o", "json")`."""

    def call(subject: str, *arguments: str) -> Result:
        options = ("--from", examples, "--hostname-override", "n1", "--cluster-cidr", "10.244.0.0/16")
        return invoke("explain", subject, *options, *arguments)

    return call


def test_service_is_shown_with_entries_and_endpoints(explain: Invoke) -> None:
    """A line for each address and for each endpoint, under the chains and the topology."""
    ran = explain("svc/demo/web-local", "--family", "ipv4")
    lines = [line.split() for line in ran.stdout.splitlines()]

    assert ran.exit_code == 0
    assert ran.stdout.startswith("Service demo/web-local, type NodePort, on node n1 (zone zone-a)\n")
    assert ["topology", "off:", "no", "ready", "endpoint", "has", "a", "hint"] in lines
    node_port = next(line for line in lines if line[:2] == ["node", "port"])
    assert node_port[2:5] == ["*", "30081", "Local"]
    assert " ".join(node_port[6:]) == "balanced over 2 endpoints, 50 % each"
    last = "10.244.2.21:8080 n2 in 33.3 % out web-local-ipv4 cluster: ready, local: not local"
    assert lines[-1] == last.split()


@pytest.mark.parametrize("subject", ["svc/demo/web", "service/demo/web", "svc/web"])
def test_service_may_be_named_in_short(subject: str, explain: Invoke) -> None:
    """The namespace may be left out where one Service has the name."""
    assert explain(subject).stdout.startswith("Service demo/web, ")


def test_json_and_yaml_say_everything(explain: Invoke) -> None:
    """Both forms hold the same document: shares as fractions, reasons as words."""
    document = json.loads(explain("svc/demo/dns", "-o", "json").stdout)
    port = document["explanation"]["ports"][0]

    assert document == yaml.safe_load(explain("svc/demo/dns", "-o", "yaml").stdout)
    assert [(row["cluster"], row["cluster_share"]) for row in port["endpoints"]] == [
        ("ready", 0.5),
        ("ready", 0.5),
        ("not ready", 0.0),
    ]
    assert port["topology"]["guard"] == "no hints"


@pytest.mark.parametrize("subject", [f"chain/{_WEB}", _WEB])
def test_chain_leads_to_its_service_port(subject: str, explain: Invoke) -> None:
    """By name alone, with or without `chain/`; each family that has it is a row."""
    rows = explain(subject).stdout.splitlines()[1:]

    assert [row.split()[:5] for row in rows] == [["demo/web:http", "tcp", one, "-", "yes"] for one in ("ipv4", "ipv6")]


def test_chain_is_a_document_too(explain: Invoke) -> None:
    """With its owners and what it does for each."""
    document = json.loads(explain(_WEB, "-o", "json", "--family", "ipv4").stdout)

    assert (document["chain"], document["meaning"]) == (_WEB, "")
    assert [(one["service_port"], one["family"], one["stands"]) for one in document["owners"]] == [
        ("demo/web:http", "ipv4", True)
    ]


def test_what_a_service_asks_for_is_told_line_by_line(invoke: Invoke, tmp_path: Path) -> None:
    """Affinity, source ranges, health check, the family that it leaves out, and that it has no endpoints."""
    path = tmp_path / "web.yaml"
    path.write_text(
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a}, spec: {type: LoadBalancer,"
        " clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], externalTrafficPolicy: Local, healthCheckNodePort: 31234,"
        " loadBalancerSourceRanges: [192.0.2.0/24], sessionAffinity: ClientIP, ports: [{port: 80, protocol: TCP}]},"
        " status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}}"
    )
    lines = invoke("explain", "svc/a/web", "--from", path, "--hostname-override", "n1").stdout.splitlines()

    assert "no IPv6 rules: its cluster IPs are 10.96.0.9" in lines
    assert any(line.startswith("affinity: ClientIP: a client address keeps its endpoint") for line in lines)
    assert any(line.startswith("source ranges: enforced here for 198.51.100.1: only 192.0.2.0/24") for line in lines)
    assert "health check: port 31234 answers 503: none is ready on this node" in lines
    assert "no endpoints: no slice of this Service has any" in lines


def test_balancing_of_another_kind_is_told(explain: Invoke) -> None:
    """Connections in turn, where the option asks for it."""
    assert "\nbalancing: rr by the configuration: " in explain("svc/demo/web", "--scheduler", "rr").stdout
    assert "\nbalancing: " not in explain("svc/demo/web").stdout


def test_fixed_chain_has_a_meaning(explain: Invoke) -> None:
    """Chains without a service are explained by a line."""
    assert explain("chain/KUBE-MARK-MASQ").stdout.startswith("KUBE-MARK-MASQ: marks packets")


def test_endpoint_lists_the_services_in_front_of_it(explain: Invoke) -> None:
    """Every service port that knows the address, with or without a port; in JSON as well."""
    rows = explain("endpoint/10.244.1.13").stdout.splitlines()[1:]
    with_port = json.loads(explain("endpoint/10.244.1.13:8080", "-o", "json").stdout)["behind"]

    names = ["demo/public:http", "demo/sticky:http", "demo/web:http", "demo/web-local:http", "demo/web-node-port:http"]
    assert sorted(names) == sorted(row.split()[0] for row in rows)
    assert sorted(names) == sorted(one["service_port"] for one in with_port)
    assert explain("endpoint/203.0.113.1").stdout == "203.0.113.1 is behind no Service\n"


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("svc/demo/wep", "no Service is called demo/wep; did you mean svc/demo/web"),
        ("svc/", "say svc/NAMESPACE/NAME"),
        ("pod/demo/web", "say svc/NAMESPACE/NAME"),
        ("chain/KUBE-SVC-AAAAAAAAAAAAAAAA", "its Service may be gone"),
        ("endpoint/web", "'web' is not an IP address"),
    ],
)
def test_unknown_subject_is_2(subject: str, words: str, explain: Invoke) -> None:
    """What cannot be found or read is wrong usage, and says what is there."""
    ran = explain(subject)

    assert (ran.exit_code, ran.stdout) == (2, "")
    assert words in ran.stderr


def test_name_of_several_services_is_2(invoke: Invoke, tmp_path: Path) -> None:
    """A short name must be that of one Service; the full ones are listed."""
    text = "{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: {}}}, spec: {{clusterIP: None}}}}\n"
    path = tmp_path / "two.yaml"
    path.write_text("---\n".join(text.format(namespace) for namespace in ("a", "b")))
    ran = invoke("explain", "svc/web", "--from", path)

    assert ran.exit_code == 2
    assert "svc/a/web, svc/b/web" in ran.stderr


def test_rejected_service_is_3_and_says_why(invoke: Invoke, tmp_path: Path) -> None:
    """A Service that was set aside has no explanation but the finding."""
    path = tmp_path / "bad.yaml"
    path.write_text("{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a}, spec: {type: X}}")
    ran = invoke("explain", "svc/a/web", "--from", path, "-o", "json")

    assert ran.exit_code == 3
    assert "rejected: Service a/web: spec.type" in ran.stderr
    assert json.loads(ran.stdout)["explanation"] is None


def test_service_without_rules_says_why(invoke: Invoke, tmp_path: Path) -> None:
    """One sentence, and exit code 0: nothing is wrong."""
    path = tmp_path / "headless.yaml"
    path.write_text("{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a}, spec: {clusterIP: None}}")
    ran = invoke("explain", "svc/a/web", "--from", path)

    assert ran.exit_code == 0
    assert ran.stdout.splitlines()[1].startswith("no rules: clusterIP is None")


def test_node_address_decides_about_node_ports(explain: Invoke) -> None:
    """`--node-address` stands for the interfaces of the node."""
    options = ("--nodeport-addresses", "192.0.2.0/24", "--node-address", "192.0.2.10", "--node-address", "203.0.113.1")
    shown = explain("svc/demo/web-node-port", *options, "--family", "ipv4").stdout

    assert [line.split()[2] for line in shown.splitlines() if line.startswith("node port")] == ["192.0.2.10"]
