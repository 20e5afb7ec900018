"""Every failure has its exit code, names what is wrong, and leaves the tables as they were."""

import fcntl
import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import Result

from kproxy_ipt.testing.api_server import ApiServer

Invoke = Callable[..., Result]
Program = Callable[..., subprocess.CompletedProcess[str]]
Saved = Callable[..., str]
Lab = tuple[str, ...]
Shim = Callable[[str, str], Mapping[str, str]]

_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
_BAD_CONFIG = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: nonsense
iptables:
  masqueradeBit: 40
  syncPeriod: -1s
nodePortAddresses: [here]
"""
# The real program refuses an input in which one rule has been spoilt, with its own words.
_REFUSES_ONE_RULE = """[ "$1" = --version ] && exec $REAL "$@"
sed '/demo\\/web:http -> 10.244.1.13/s/--mode random/--mode bogus/' | $REAL "$@"
"""
# A target that the kernel allows in POSTROUTING alone.
_KERNEL_REFUSES_ONE_RULE = """[ "$1" = --version ] && exec $REAL "$@"
sed 's/-j DNAT --to-destination 10.244.1.13:.*/-j MASQUERADE/' | $REAL "$@"
"""
_REFUSES_A_FIXED_RULE = """[ "$1" = --version ] && exec $REAL "$@"
sed '/-A KUBE-POSTROUTING/s/-j MASQUERADE/-j MASQUERADE --bogus/' | $REAL "$@"
"""
_ALWAYS_FAILS = """[ "$1" = --version ] && exec $REAL "$@"
echo "$(basename $0): line 3: RULE_APPEND failed (Invalid argument): rule in chain X" >&2
exit 4"""


def test_rejected_object_is_3_while_the_others_are_rendered(invoke: Invoke, examples: Path, tmp_path: Path) -> None:
    """The good objects give their rules, on standard output, and the bad one is named."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("{apiVersion: v1, kind: Service, metadata: {name: bad, namespace: x}, spec: {ports: [{port: 0}]}}")
    ran = invoke("render", "--from", bad, "--from", examples, "--hostname-override", "n1")

    assert ran.exit_code == 3
    assert "demo/web:http" in ran.stdout
    assert "rejected: Service x/bad: spec.ports[0].port: found 0, expected a number from 1 to 65535" in ran.stderr


def test_bad_configuration_is_4_and_names_every_problem(invoke: Invoke, tmp_path: Path) -> None:
    """One line for each problem, with the path of the field."""
    file = tmp_path / "config.yaml"
    file.write_text(_BAD_CONFIG)
    ran = invoke("config", "--config", file)

    assert (ran.exit_code, ran.stdout) == (4, "")
    assert all(line.startswith("error: ") for line in ran.stderr.splitlines())
    for field in ("ClusterCIDR", "IPTables.MasqueradeBit", "IPTables.SyncPeriod", "NodePortAddresses[0]"):
        assert f"error: KubeProxyConfiguration.{field}: " in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--config", "missing.conf"], "missing.conf: No such file or directory"),
        (["--v=high"], "--v"),
        (["--nodeport-addresses=x"], "NodePortAddresses[0]"),
    ],
)
def test_unusable_flags_are_4(arguments: list[str], named: str, invoke: Invoke) -> None:
    """A file that is not there, a word for a number, a text that is no range."""
    ran = invoke("render", "--from", "-", *arguments, "--output", "json")

    assert ran.exit_code == 4
    assert json.loads(ran.stdout)["error"]["kind"] == "ConfigError"
    assert named in ran.stderr


def test_missing_path_is_5_and_named(invoke: Invoke) -> None:
    """Nothing is printed in its place."""
    ran = invoke("render", "--from", "/no/such/path")

    assert (ran.exit_code, ran.stdout) == (5, "")
    assert ran.stderr == "error: /no/such/path: No such file or directory\n"


def test_empty_folder_is_5(invoke: Invoke, tmp_path: Path) -> None:
    """Going on would take all rules away."""
    ran = invoke("render", "--from", tmp_path)

    assert (ran.exit_code, ran.stdout) == (5, "")
    assert str(tmp_path) in ran.stderr


@pytest.mark.parametrize(("token", "code"), [("wrong", "401"), ("", "403")])
def test_api_server_that_refuses_is_5(token: str, code: str, invoke: Invoke, tmp_path: Path) -> None:
    """The message names the server's answer."""
    kubeconfig = tmp_path / "config"
    with ApiServer(tokens={"good": "kube-proxy"}) as server:
        user = {"token": token} if token else {}
        kubeconfig.write_text(json.dumps(_kubeconfig(server.url, user)))
        ran = invoke("render", "--kubeconfig", kubeconfig)

    assert (ran.exit_code, ran.stdout) == (5, "")
    assert code in ran.stderr


def test_api_server_that_is_down_is_5(invoke: Invoke, tmp_path: Path) -> None:
    """The message names the address."""
    with ApiServer() as server:
        url = server.url
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(json.dumps(_kubeconfig(url, {})))
    ran = invoke("render", "--kubeconfig", kubeconfig)

    assert (ran.exit_code, ran.stdout) == (5, "")
    assert url in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def _kubeconfig(url: str, user: Mapping[str, str]) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "users": [{"name": "lab", "user": dict(user)}],
    }


@pytest.mark.kernel
def test_missing_program_is_6(program: Program, lab: Lab, netns: str, saved: Saved, tmp_path: Path) -> None:
    """A machine without any iptables program."""
    (tmp_path / "empty").mkdir()
    before = saved(netns)
    ran = program("sync", "--once", *lab[:-2], sbin=tmp_path / "empty")

    assert (ran.returncode, ran.stdout) == (6, "")
    assert ran.stderr.splitlines()[-1] == "error: no iptables programs are installed"
    assert saved(netns) == before


@pytest.mark.kernel
def test_missing_backend_is_6(program: Program, lab: Lab, tmp_path: Path) -> None:
    """A pinned backend whose programs are not there (C78): the message names the one that is."""
    sbin = tmp_path / "sbin"
    sbin.mkdir()
    (sbin / "xtables-nft-multi").write_bytes(Path("/usr/sbin/xtables-nft-multi").read_bytes())
    (sbin / "xtables-nft-multi").chmod(0o755)
    ran = program("sync", "--once", *lab[:-1], "legacy", sbin=sbin)

    assert ran.returncode == 6
    assert "the backend legacy is pinned, but its programs are not installed (there is nft)" in ran.stderr


@pytest.mark.parametrize("command", [("sync", "--once", "--from", "-"), ("cleanup",)])
def test_missing_namespace_is_6(command: tuple[str, ...], invoke: Invoke) -> None:
    """The message names it and the file that is looked for."""
    ran = invoke(*command, "--netns", "no-such-netns")

    assert (ran.exit_code, ran.stdout) == (6, "")
    assert "there is no network namespace no-such-netns (/run/netns/no-such-netns does not exist)" in ran.stderr


@pytest.mark.kernel
@pytest.mark.parametrize("backend", ["auto", "nft", "legacy"])
def test_no_privilege_is_7(backend: str, program: Program, invoke: Invoke, lab: Lab, netns: str, saved: Saved) -> None:
    """The user nobody may neither write nor read the tables; what to have is said."""
    invoke("sync", "--once", *lab[:-1], "legacy")
    before = saved(netns, "legacy"), saved(netns)
    options = (*lab[:4], "--backend", backend)
    ran = program("sync", "--once", *options, prefix=("ip", "netns", "exec", netns, *_NOBODY))

    assert (ran.returncode, ran.stdout) == (7, "")
    assert "root" in ran.stderr.splitlines()[-1]
    assert (saved(netns, "legacy"), saved(netns)) == before


@pytest.mark.kernel
def test_namespace_that_may_not_be_entered_is_7(program: Program, lab: Lab) -> None:
    """It is there, so it is not missing."""
    ran = program("sync", "--once", *lab, prefix=_NOBODY)

    assert ran.returncode == 7
    assert "may not be entered: root or CAP_SYS_ADMIN is needed" in ran.stderr


@pytest.mark.kernel
@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_refused_rule_of_no_service_is_8_and_named(
    backend: str, program: Program, lab: Lab, netns: str, saved: Saved, shim: Shim
) -> None:
    """Line, rule and chain are told; the family's tables are as before, the other family is written."""
    environment = shim(f"iptables-{backend}-restore", _REFUSES_A_FIXED_RULE)
    before = saved(netns, backend)
    ran = program("sync", "--once", *lab[:-1], backend, "--output", "json", env=environment)

    document = json.loads(ran.stdout)
    error = document["families"]["ipv4"]["error"]
    assert ran.returncode == document["exit_code"] == 8
    assert (error["chain"], "owner" in error) == ("KUBE-POSTROUTING", False)
    assert error["rule"].startswith("-A KUBE-POSTROUTING ")
    assert error["line"] > 1
    assert f"error: ipv4: line {error['line']}: " in ran.stderr
    assert ran.stderr.splitlines()[-1] == f"       rule: {error['rule']}"
    assert document["families"]["ipv6"]["transactions"] > 0
    assert _family(saved(netns, backend), "10.") == _family(before, "10.")


@pytest.mark.kernel
@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_refused_service_is_10_and_named(
    backend: str, program: Program, invoke: Invoke, lab: Lab, netns: str, saved: Saved, shim: Shim
) -> None:
    """It is left with what it had, here nothing; all other Services of the family are written."""
    environment = shim(f"iptables-{backend}-restore", _REFUSES_ONE_RULE)
    ran = program("sync", "--once", *lab[:-1], backend, "--output", "json", env=environment)
    refused = saved(netns, backend)
    again = invoke("sync", "--once", *lab[:-1], backend)

    document = json.loads(ran.stdout)
    [aside] = document["families"]["ipv4"]["set_aside"]
    assert ran.returncode == document["exit_code"] == 10
    assert (aside["service"], aside["rules"], document["families"]["ipv4"]["error"]) == ("demo/web", "none", None)
    assert "(rule: -A KUBE-SVC-XRY76EGRC3BSCIIJ " in aside["reason"]
    assert f"error: ipv4: Service demo/web is set aside, rules: none: {aside['reason']}" in ran.stderr
    assert not [line for line in _family(refused, "10.") if '"demo/web:' in line]
    others = [line for line in _family(saved(netns, backend), "10.") if "demo/web:" not in line]
    assert (again.exit_code, set(others) - set(refused.splitlines())) == (0, set())


@pytest.mark.kernel
def test_refused_service_without_a_word_is_10_too(
    program: Program, lab: Lab, netns: str, saved: Saved, shim: Shim
) -> None:
    """The legacy program names the line of the COMMIT alone, and the Service is found by trying."""
    environment = shim("iptables-legacy-restore", _KERNEL_REFUSES_ONE_RULE)
    ran = program("sync", "--once", *lab[:-1], "legacy", env=environment)

    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (10, "everything else was written")
    assert "error: ipv4: Service demo/web is set aside, rules: none: " in ran.stderr
    assert "10.244.1.13" not in saved(netns, "legacy")


def _family(save: str, prefix: str) -> list[str]:
    """The rules that hold an address of a family."""
    return [line for line in save.splitlines() if f"-d {prefix}" in line or f"-s {prefix}" in line]


@pytest.mark.kernel
def test_failure_leaves_working_rules(
    program: Program, invoke: Invoke, lab: Lab, netns: str, saved: Saved, shim: Shim
) -> None:
    """All restores fail: the rules of the last sync stand, although the objects have changed."""
    invoke("sync", "--once", *lab)
    before = saved(netns)
    environment = {**shim("iptables-nft-restore", _ALWAYS_FAILS), **shim("ip6tables-nft-restore", _ALWAYS_FAILS)}
    changed = ("--from", str(Path(lab[1]) / "dns.yaml"), *lab[2:])
    ran = program("sync", "--once", *changed, env=environment)

    assert ran.returncode == 8
    assert ran.stdout.splitlines()[-1] == "not everything could be written"
    assert [line.partition(": line")[0] for line in ran.stderr.splitlines() if line.startswith("error")] == [
        "error: ipv4",
        "error: ipv6",
    ]
    assert saved(netns) == before


@pytest.mark.kernel
def test_held_lock_is_9(program: Program, invoke: Invoke, lab: Lab, netns: str, saved: Saved, tmp_path: Path) -> None:
    """Somebody holds the xtables lock for longer than `--lock-wait`; nothing is written."""
    legacy = (*lab[:-1], "legacy", "--family", "ipv4", "--lock-wait", "1")
    invoke("sync", "--once", *legacy)
    before = saved(netns, "legacy")
    lock = tmp_path / "xtables.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        changed = ("--from", str(Path(lab[1]) / "web.yaml"), *legacy[2:])
        ran = program("sync", "--once", *changed, env={"XTABLES_LOCKFILE": str(lock)})

    assert ran.returncode == 9
    assert "error: ipv4: another program holds the xtables lock" in ran.stderr
    assert saved(netns, "legacy") == before
