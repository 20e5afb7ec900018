"""Facts about finding the cluster and the user in kubeconfig files, a pod, or an address."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy_ipt.errors import SourceError
from kproxy_ipt.sources.kubeconfig import TOKEN_LIFE_S, ClusterConnection, TokenFile, find_access

KubeconfigWriter = Callable[..., Path]


ONE_CLUSTER = "{current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {%s}}]}"


class Clock:
    """A clock that stands still until told otherwise."""

    now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def test_given_kubeconfig_wins_over_variable_and_home(write_kubeconfig: KubeconfigWriter, tmp_path: Path) -> None:
    """A kubeconfig that is asked for by name is the only one that counts."""
    given = write_kubeconfig({"server": "https://given"}, {}, name="given")
    listed = write_kubeconfig({"server": "https://listed"}, {}, name="listed")
    write_kubeconfig({"server": "https://home"}, {}, name="home/.kube/config")

    access = find_access(
        ClusterConnection(kubeconfig=str(given)), {"KUBECONFIG": str(listed), "HOME": str(tmp_path / "home")}
    )

    assert access.server == "https://given"
    assert access.origin == f"context main of {given}"


def test_variable_wins_over_home(write_kubeconfig: KubeconfigWriter, tmp_path: Path) -> None:
    """KUBECONFIG is looked at before the home folder."""
    listed = write_kubeconfig({"server": "https://listed"}, {}, name="listed")
    write_kubeconfig({"server": "https://home"}, {}, name="home/.kube/config")

    access = find_access(ClusterConnection(), {"KUBECONFIG": str(listed), "HOME": str(tmp_path / "home")})

    assert access.server == "https://listed"


def test_home_wins_over_pod(write_kubeconfig: KubeconfigWriter, tmp_path: Path) -> None:
    """With nothing else said, `~/.kube/config` is used, even in a pod."""
    write_kubeconfig({"server": "https://home"}, {}, name="home/.kube/config")

    access = find_access(
        ClusterConnection(),
        {"HOME": str(tmp_path / "home"), "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"},
    )

    assert access.server == "https://home"


def test_first_file_of_several_chooses_the_context(write_kubeconfig: KubeconfigWriter, tmp_path: Path) -> None:
    """Of several files in KUBECONFIG the first one with a current context decides, missing files do not count."""
    first = write_kubeconfig({"server": "https://first"}, {}, name="first", context="one")
    second = write_kubeconfig({"server": "https://second"}, {}, name="second", context="two")
    environ = {"KUBECONFIG": f"{tmp_path / 'missing'}:{first}:{second}"}

    servers = [find_access(ClusterConnection(context=name), environ).server for name in ("", "one", "two")]

    assert servers == ["https://first", "https://first", "https://second"]


def test_relative_paths_count_from_the_file_that_holds_them(tmp_path: Path) -> None:
    """A certificate of the user is looked for beside the file of the user, not of the cluster."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/config").write_text(
        "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], clusters: [{name: c, "
        "cluster: {server: https://c, certificate-authority: ca.crt}}], users: null}"
    )
    (tmp_path / "b/config").write_text(
        "users: [{name: u, user: {client-certificate: me.crt, client-key: /abs/me.key, tokenFile: ../token}}]"
    )

    access = find_access(ClusterConnection(), {"KUBECONFIG": f"{tmp_path}/a/config:{tmp_path}/b/config"})

    assert access.cluster["certificate-authority"] == f"{tmp_path}/a/ca.crt"
    assert access.user == {"client-certificate": f"{tmp_path}/b/me.crt", "client-key": "/abs/me.key"}
    assert access.token_file == f"{tmp_path}/b/../token"


def test_token_file_wins_over_token(write_kubeconfig: KubeconfigWriter) -> None:
    """A user with both uses the file, as with kubectl."""
    path = write_kubeconfig({"server": "https://c"}, {"token": "old", "tokenFile": "/run/token"})

    access = find_access(ClusterConnection(kubeconfig=str(path)), {})

    assert (access.token_file, access.user) == ("/run/token", {})


def test_token_wins_over_plugin(write_kubeconfig: KubeconfigWriter) -> None:
    """A user with a token needs no plug-in to be run."""
    path = write_kubeconfig({"server": "https://c"}, {"token": "t", "exec": {"command": "login"}})

    assert find_access(ClusterConnection(kubeconfig=str(path)), {}).plugin is None


def test_master_replaces_server_of_kubeconfig(write_kubeconfig: KubeconfigWriter) -> None:
    """With a kubeconfig, the given address takes the place of its server; CA and user stay."""
    path = write_kubeconfig({"server": "https://c", "certificate-authority": "/ca.crt"}, {"token": "t"})

    access = find_access(ClusterConnection(kubeconfig=str(path), master="https://other:6443/"), {})

    assert access.cluster == {"server": "https://other:6443", "certificate-authority": "/ca.crt"}
    assert access.user == {"token": "t"}


def test_master_alone_carries_no_credentials(write_kubeconfig: KubeconfigWriter, tmp_path: Path) -> None:
    """The token of the home folder never travels to an address that is given by itself."""
    write_kubeconfig({"server": "https://home"}, {"token": "secret"}, name="home/.kube/config")

    access = find_access(ClusterConnection(master="http://127.0.0.1:8080"), {"HOME": str(tmp_path / "home")})

    assert (access.server, access.user, access.token_file) == ("http://127.0.0.1:8080", {}, "")


@pytest.mark.parametrize(
    ("server", "user", "expected"),
    [
        ("10.0.0.1:6443", {"client-certificate": "/me.crt"}, "https://10.0.0.1:6443"),
        ("10.0.0.1:8080", {}, "http://10.0.0.1:8080"),
        ("https://10.0.0.1/prefix/", {}, "https://10.0.0.1/prefix"),
    ],
)
def test_server_without_scheme_is_https_only_with_tls_settings(
    server: str, user: dict[str, str], expected: str, write_kubeconfig: KubeconfigWriter
) -> None:
    """`host:port` alone is taken as kubectl takes it."""
    path = write_kubeconfig({"server": server}, user)

    assert find_access(ClusterConnection(kubeconfig=str(path)), {}).server == expected


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_pod_uses_its_service_account(host: str, server: str, tmp_path: Path) -> None:
    """In a pod, address, CA and token come from what the kubelet provides, for both families."""
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("pem")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}

    access = find_access(ClusterConnection(service_account=str(tmp_path)), environ)

    assert access.cluster == {"server": server, "certificate-authority": str(tmp_path / "ca.crt")}
    assert access.token_file == str(tmp_path / "token")


def test_pod_without_service_account_is_told_why(tmp_path: Path) -> None:
    """A pod without mounted token gets the name of the setting that is in the way."""
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}

    with pytest.raises(SourceError, match="automountServiceAccountToken"):
        find_access(ClusterConnection(service_account=str(tmp_path)), environ)


def test_context_without_a_kubeconfig_is_an_error(tmp_path: Path) -> None:
    """In a pod too: its service account has no contexts to choose from."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}

    with pytest.raises(SourceError, match="context 'lab' is asked for, but there is no kubeconfig"):
        find_access(ClusterConnection(context="lab"), pod)


def test_no_cluster_at_all_lists_what_can_be_done() -> None:
    """Without kubeconfig and outside of a pod the ways to name a cluster are listed."""
    with pytest.raises(SourceError, match=r"give a kubeconfig, set KUBECONFIG, create ~/.kube/config, or run in a pod"):
        find_access(ClusterConnection(), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("- 1", "is no kubeconfig: Expected `object"),
        ("a: [", "is no kubeconfig: no YAML at line 2, column 1"),
        ("a: !tag b", "is no kubeconfig: no YAML at line 1, column 4"),
        ("clusters: {}", r"Expected `array \| null`, got `object` - at `\$.clusters`"),
        ("contexts: [{name: b}, {name: a}]", "has no current context: choose one of a, b"),
        ("current-context: x", r"has no context 'x', only none"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: c}}]}", "refers to cluster 'c', which does not"),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], clusters: [{name: c}]}",
            "refers to user 'u', which does not exist",
        ),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c}]}",
            "has no server address",
        ),
        (ONE_CLUSTER % "server: 'ftp://x'", "'ftp://x' is no address of an API server"),
        (ONE_CLUSTER % "server: 'http://x:port'", "'http://x:port' is no address of an API server"),
        (ONE_CLUSTER % "server: 'http://127.0.0.1:99999999'", "is no address of an API server"),
        (ONE_CLUSTER % "server: 'https://:6443'", "'https://:6443' is no address of an API server"),
        (ONE_CLUSTER % "server: 'https://me:secret@x'", "a user and password, or a query, do not belong"),
        (ONE_CLUSTER % "server: 'https://x/?token=secret'", "a user and password, or a query, do not belong"),
        (ONE_CLUSTER % "server: null", "has no server address"),
    ],
)
def test_unusable_kubeconfig_is_named_with_its_fault(text: str, message: str, tmp_path: Path) -> None:
    """Every fault of a kubeconfig is a SourceError that names the file."""
    path = tmp_path / "config"
    path.write_text(text)

    with pytest.raises(SourceError, match=message) as caught:
        find_access(ClusterConnection(kubeconfig=str(path)), {})

    assert str(path) in str(caught.value)


def test_missing_kubeconfig_is_an_error(tmp_path: Path) -> None:
    """A kubeconfig that was asked for and does not exist is never replaced by another source."""
    with pytest.raises(SourceError, match=r"nothing cannot be read: No such file"):
        find_access(ClusterConnection(kubeconfig=str(tmp_path / "nothing")), {})


def test_variable_without_existing_file_is_an_error(tmp_path: Path) -> None:
    """A KUBECONFIG with a typing error does not lead to another cluster."""
    with pytest.raises(SourceError, match="no such file exists"):
        find_access(ClusterConnection(), {"KUBECONFIG": str(tmp_path / "nothing")})


def test_token_file_is_read_again_after_its_life(tmp_path: Path) -> None:
    """A rotated token is in use one minute later at the latest, without the line feed of the file."""
    clock = Clock()
    path = tmp_path / "token"
    path.write_text("first\n")
    tokens = TokenFile(str(path), clock)
    seen = [tokens.token()]
    path.write_text("second\n")

    seen.append(tokens.token())
    clock.now += TOKEN_LIFE_S
    seen.append(tokens.token())

    assert seen == ["first", "first", "second"]


def test_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    """After a refusal the file is read again before its time."""
    path = tmp_path / "token"
    path.write_text("first")
    tokens = TokenFile(str(path), Clock())
    tokens.token()
    path.write_text("second")

    tokens.forget()

    assert tokens.token() == "second"


def test_old_token_outlives_its_file(tmp_path: Path) -> None:
    """If the file is gone or empty at rotation time, the former token stays in use."""
    path = tmp_path / "token"
    path.write_text("first")
    tokens = TokenFile(str(path), Clock())
    tokens.token()

    tokens.forget()
    path.write_text("")
    while_empty = tokens.token()
    tokens.forget()
    path.unlink()

    assert (while_empty, tokens.token()) == ("first", "first")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), (b" \n", "is empty"), (b"\xff", "cannot be")]
)
def test_first_token_must_be_readable(content: bytes | None, message: str, tmp_path: Path) -> None:
    """Without any token there is an error that names the file."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SourceError, match=f"token file {path} {message}"):
        TokenFile(str(path)).token()
