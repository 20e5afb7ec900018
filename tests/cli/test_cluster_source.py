"""Objects from an API server: kubeconfig files, contexts, and what goes over the wire."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from kproxy_ipt.testing.api_server import ApiServer

Invoke = Callable[..., Result]


@pytest.fixture
def server(examples: Path) -> Iterator[ApiServer]:
    """A cluster that holds the examples."""
    with ApiServer() as running:
        for path in sorted(examples.iterdir()):
            running.put(*yaml.safe_load_all(path.read_text()))
        yield running


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    """A kubeconfig whose current context leads nowhere; `lab` is the cluster."""
    clusters = {"nowhere": "http://127.0.0.1:1", "lab": server.url}
    document: Mapping[str, object] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "nowhere",
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in clusters],
        "clusters": [{"name": name, "cluster": {"server": url}} for name, url in clusters.items()],
        "users": [{"name": "me", "user": {}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(document))
    return path


def test_cluster_and_files_give_the_same_rules(invoke: Invoke, kubeconfig: Path, examples: Path) -> None:
    """What is in a cluster and what is in files is programmed alike; `--context` chooses the cluster."""
    node = ("--hostname-override", "n1")
    ran = invoke("render", "--kubeconfig", kubeconfig, "--context", "lab", *node)

    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout == invoke("render", "--from", examples, *node).stdout


def test_address_on_the_command_line_counts_more(
    invoke: Invoke, kubeconfig: Path, server: ApiServer, examples: Path
) -> None:
    """`--master` beats the server of the kubeconfig."""
    node = ("--hostname-override", "n1")
    ran = invoke("render", "--kubeconfig", kubeconfig, "--master", server.url, *node)

    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout == invoke("render", "--from", examples, *node).stdout


def test_environment_names_the_file(invoke: Invoke, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBECONFIG is read where no option says otherwise."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    ran = invoke("render", "--context", "lab", "--hostname-override", "n1")

    assert ran.exit_code == 0, ran.stderr
    assert "demo/web:http" in ran.stdout


def test_unknown_context_is_named(invoke: Invoke, kubeconfig: Path) -> None:
    """A typing error is not taken for the current context."""
    ran = invoke("render", "--kubeconfig", kubeconfig, "--context", "labb")

    assert ran.exit_code in (4, 5)
    assert "labb" in ran.stderr


@pytest.mark.kernel
def test_cluster_is_reached_from_outside_the_namespace(
    invoke: Invoke, kubeconfig: Path, netns: str, iptables: Callable[..., str]
) -> None:
    """`--netns` is where rules go; the API server listens on the loopback of where the command was started."""
    ran = invoke(
        "sync", "--once", "--kubeconfig", kubeconfig, "--context", "lab", "--hostname-override", "n1", "--netns", netns
    )

    assert ran.exit_code == 0, ran.stderr
    assert "demo/web:http" in iptables(word="iptables-nft-save")
