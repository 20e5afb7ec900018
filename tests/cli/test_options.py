"""Options that commands share: kube-proxy's flags in all spellings, and where objects come from."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

Invoke = Callable[..., Result]

_KUBEADM = Path(__file__).parents[1] / "config" / "kubeadm-config.conf"


def _config(invoke: Invoke, *flags: str) -> dict[str, object]:
    shown = invoke("config", "--output", "json", *flags)
    assert shown.exit_code == 0, shown.stderr
    document: dict[str, object] = json.loads(shown.stdout)
    return document


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--masquerade-all"], True),
        (["--masquerade-all=true"], True),
        (["--masquerade-all=false"], False),
        (["--masquerade-all", "--masquerade-all=false"], False),
        ([], False),
    ],
)
def test_boolean_flag_has_all_spellings_of_kube_proxy(flags: list[str], wanted: bool, invoke: Invoke) -> None:  # noqa: FBT001
    """Alone it means true, with `=` what it says; the last one counts."""
    found = _config(invoke, *flags)["iptables"]

    assert isinstance(found, dict)
    assert found["masqueradeAll"] is wanted


@pytest.mark.parametrize("flags", [["-v", "4"], ["--v", "4"], ["--v=4"], ["-v4"], ["--v=2", "--v=4"]])
def test_verbosity_has_all_spellings_of_kube_proxy(flags: list[str], invoke: Invoke) -> None:
    """`-v 4` and `--v=4` are the same."""
    found = _config(invoke, *flags)["logging"]

    assert isinstance(found, dict)
    assert found["verbosity"] == 4


def test_lists_are_joined_over_several_flags(invoke: Invoke) -> None:
    """Commas and repeated flags add up."""
    flags = ["--nodeport-addresses", "10.0.0.0/8,fd00::/8", "--nodeport-addresses=192.0.2.0/24"]

    assert _config(invoke, *flags)["nodePortAddresses"] == ["10.0.0.0/8", "fd00::/8", "192.0.2.0/24"]


def test_every_command_takes_flags_that_mean_nothing_to_it(invoke: Invoke, examples: Path) -> None:
    """The arguments of a kube-proxy DaemonSet do not have to be sorted out by hand."""
    flags = ["--conntrack-max-per-core=1", "--metrics-bind-address", "0.0.0.0:10249", "--proxy-mode=iptables"]
    shown = invoke("render", "--from", examples, "--hostname-override", "n1", *flags)

    assert shown.exit_code == 0


def test_configuration_file_of_kubeadm_is_read(invoke: Invoke, examples: Path) -> None:
    """`--config` brings the ranges of the pods into the rules."""
    cidr = yaml.safe_load(_KUBEADM.read_text())["clusterCIDR"]
    options = ("--from", examples, "--hostname-override", "n1", "--config", _KUBEADM)
    shown = invoke("render", *options)

    assert cidr
    assert f"! -s {cidr.split(',')[0]} -d 10.96.0.80/32" in shown.stdout


@pytest.mark.parametrize("cidrs", ["10.244.0.0/16,fd00:10:244::/56", "fd00:10:244::/56,10.244.0.0/16"])
@pytest.mark.parametrize("where", ["flag", "file"])
def test_pair_of_cluster_ranges_is_split_by_family(
    cidrs: str,
    where: str,
    invoke: Invoke,
    examples: Path,
    tmp_path: Path,
) -> None:
    """C46: each family's rules carry their half, whatever the order, from flags and from a file."""
    file = tmp_path / "config.yaml"
    file.write_text(
        f"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: '{cidrs}'\n"
    )
    options = ("--config", file) if where == "file" else ("--cluster-cidr", cidrs)
    shown = invoke("render", "--from", examples, "--hostname-override", "n1", *options)

    ipv4, ipv6 = shown.stdout.split("# ipv6\n")
    assert "! -s 10.244.0.0/16 " in ipv4
    assert "fd00:10:244::/56" not in ipv4
    assert "! -s fd00:10:244::/56 " in ipv6
    assert "10.244.0.0/16" not in ipv6


@pytest.mark.parametrize("cidrs", ["10.244.0.0/16,10.245.0.0/16", "x", "10.244.0.0", "10.244.0.0/16,,"])
def test_wrong_cluster_range_names_the_field(cidrs: str, invoke: Invoke, examples: Path) -> None:
    """C46, C52: two ranges of one family and texts that are no range end in 4 and print no rules."""
    shown = invoke("render", "--from", examples, "--cluster-cidr", cidrs)

    assert (shown.exit_code, shown.stdout) == (4, "")
    assert "cluster" in shown.stderr.lower()


def test_missing_cluster_range_is_said_and_renders_valid_rules(invoke: Invoke, examples: Path) -> None:
    """C52: the rule that needs the range is left out, with one note for each family."""
    shown = invoke("render", "--from", examples, "--hostname-override", "n1")

    assert shown.exit_code == 0
    assert "-s  " not in shown.stdout
    assert shown.stderr.count("no local traffic detector") == 2


def test_range_of_everything_is_warned_about(invoke: Invoke, examples: Path) -> None:
    """C52: with 0.0.0.0/0 nothing would ever be masqueraded."""
    shown = invoke("render", "--from", examples, "--hostname-override", "n1", "--cluster-cidr", "0.0.0.0/0")

    assert shown.exit_code == 0
    assert "0.0.0.0/0" in shown.stderr


def _dump(examples: Path) -> dict[str, object]:
    """What `kubectl get -o json` prints."""
    documents = [found for path in examples.iterdir() for found in yaml.safe_load_all(path.read_text())]
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": documents}


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_list_of_kubectl_is_read_like_manifests(suffix: str, invoke: Invoke, examples: Path, tmp_path: Path) -> None:
    """A dump in JSON or YAML, as a file or on standard input, gives the rules of the files it was made of."""
    text = json.dumps(_dump(examples)) if suffix == "json" else yaml.safe_dump(_dump(examples))
    file = tmp_path / f"dump.{suffix}"
    file.write_text(text)
    wanted = invoke("render", "--from", examples, "--hostname-override", "n1").stdout

    assert invoke("render", "--from", file, "--hostname-override", "n1").stdout == wanted
    assert invoke("render", "--from", "-", "--hostname-override", "n1", stdin=text).stdout == wanted


def test_name_of_the_node_decides_what_is_local(invoke: Invoke, examples: Path) -> None:
    """`--hostname-override` is the node whose endpoints count for the policy Local."""
    local = {
        node: invoke("render", "--from", examples, "--family", "ipv4", "--hostname-override", node).stdout
        for node in ("n1", "n2", "N2")
    }

    assert local["n1"] != local["n2"]
    assert local["N2"] == local["n2"]


def test_name_that_no_object_knows_is_said(invoke: Invoke, examples: Path) -> None:
    """C101: the names that endpoints do have are shown, and what to do."""
    notes = invoke("render", "--from", examples, "--hostname-override", "n1.example.com").stderr

    assert "no endpoint is on node 'n1.example.com', they name n1, n2: set --hostname-override" in notes
