"""
A container of a pod under crun, as a kubelet and a container runtime would make it from manifest and image.

Beside its own files the process has what crun itself proposes (`crun spec`): namespaces, masked paths, `/proc/sys` that
is read-only. From the manifest come command line, user, capabilities, mounts and whether files can be written. The
profile for `RuntimeDefault` is the one that Debian packs for its container tools. The network is that of a node.
"""

import json
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

_SECCOMP_PROFILE = Path("/usr/share/containers/seccomp.json")
# crun refuses to start where both versions of cgroups have controllers, even if it is not to use any.
_CRUN = (
    *("unshare", "--mount", "sh", "-c"),
    'umount /sys/fs/cgroup/unified 2>/dev/null; exec crun --cgroup-manager=disabled "$@"',
    "crun",
)
_PATIENCE_S = 30.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DISCARDED_MOUNTS = frozenset({"/sys/fs/cgroup"})


class _Capabilities(msgspec.Struct, frozen=True):
    drop: list[str]
    add: list[str]


class _SecurityContext(msgspec.Struct, frozen=True, rename="camel"):
    privileged: bool
    allow_privilege_escalation: bool
    read_only_root_filesystem: bool
    run_as_user: int
    capabilities: _Capabilities


class _VolumeMount(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    mount_path: str
    read_only: bool = False


class PodContainer(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of a container in a pod's manifest."""

    command: list[str]
    security_context: _SecurityContext
    volume_mounts: list[_VolumeMount]

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Names of what is granted, such as `CAP_NET_ADMIN`."""
        return tuple(f"CAP_{name}" for name in self.security_context.capabilities.add)


class _Condition(msgspec.Struct, frozen=True):
    caps: list[str] = []
    arches: list[str] = []


class _SyscallRule(msgspec.Struct, frozen=True):
    names: list[str]
    action: str
    args: list[dict[str, int | str]] | None = None
    includes: _Condition = _Condition()
    excludes: _Condition = _Condition()
    errno: int | None = msgspec.field(default=None, name="errnoRet")


class _SeccompProfile(msgspec.Struct, frozen=True, rename="camel"):
    default_action: str
    default_errno_ret: int
    syscalls: list[_SyscallRule]


def runtime_default_seccomp(capabilities: Sequence[str]) -> Mapping[str, object]:
    """
    The section `linux.seccomp` that `RuntimeDefault` means for a process with these capabilities.

    Raises:
        OSError: The profile is not installed.
    """
    profile = msgspec.json.decode(_SECCOMP_PROFILE.read_bytes(), type=_SeccompProfile)
    machine = _ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    rules = [
        {"names": rule.names, "action": rule.action}
        | ({"args": rule.args} if rule.args else {})
        | ({"errnoRet": rule.errno} if rule.errno is not None else {})
        for rule in profile.syscalls
        if set(rule.includes.caps) <= set(capabilities)
        and not set(rule.excludes.caps) & set(capabilities)
        and (not rule.includes.arches or machine in rule.includes.arches)
    ]
    return {
        "defaultAction": profile.default_action,
        "defaultErrnoRet": profile.default_errno_ret,
        "syscalls": rules,
    }


class Container:
    """
    One container; a context manager that starts it and leaves no process behind.

    Attributes:
        log: File with what it prints.
    """

    def __init__(
        self,
        rootfs: Path,
        manifest: PodContainer,
        folder: Path,
        *,
        netns: str,
        volumes: Mapping[str, Path],
        environment: Mapping[str, str],
        arguments: Sequence[str] = (),
        user: int | None = None,
    ) -> None:
        """
        Describe a container; nothing is started yet.

        Args:
            rootfs: Files of the image.
            manifest: What it is to be.
            folder: Empty; bundle, state and log are written there.
            netns: Name of the node's network namespace.
            volumes: File or folder behind each volume of the manifest.
            environment: Variables; `$(NAME)` in the command line stands for them.
            arguments: Added to the command line.
            user: In the place of the manifest's; one other than root gets the capabilities as ambient ones, which a
                kubelet cannot do.

        Raises:
            ValueError: The manifest asks for privileges that are not known here.
        """
        self.log = folder / "log"
        self._name = f"kpt-{secrets.token_hex(4)}"
        self._bundle = folder / "bundle"
        self._command = [*_CRUN, "--root", str(folder / "state")]
        self._process: subprocess.Popen[bytes] | None = None
        context = manifest.security_context
        if context.privileged or context.capabilities.drop != ["ALL"]:
            raise ValueError("only a container that drops all capabilities and is not privileged is known here")
        words = [re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], word) for word in manifest.command]
        self._bundle.mkdir()
        subprocess.run(["crun", "spec"], cwd=self._bundle, check=True, timeout=_PATIENCE_S)
        file = self._bundle / "config.json"
        spec = json.loads(file.read_bytes())
        spec["process"] |= {
            "terminal": False,
            "args": [*words, *arguments],
            "env": [f"{name}={value}" for name, value in environment.items()],
            "user": {"uid": context.run_as_user if user is None else user, "gid": 0},
            "capabilities": _capability_sets(manifest.capabilities, ambient=bool(user)),
            "noNewPrivileges": not context.allow_privilege_escalation,
            "rlimits": [],
        }
        spec["root"] = {"path": str(rootfs), "readonly": context.read_only_root_filesystem}
        spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] not in _DISCARDED_MOUNTS]
        spec["mounts"] += [_bind(volumes[mount.name], mount) for mount in manifest.volume_mounts]
        spec["linux"]["seccomp"] = runtime_default_seccomp(manifest.capabilities)
        (network,) = (found for found in spec["linux"]["namespaces"] if found["type"] == "network")
        network["path"] = f"/run/netns/{netns}"
        file.write_text(json.dumps(spec))

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            command = [*self._command, "run", "--bundle", str(self._bundle), self._name]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it if it still runs."""
        command = [*self._command, "delete", "--force", self._name]
        subprocess.run(command, check=False, capture_output=True, timeout=_PATIENCE_S)
        if self._process is not None:
            self._process.kill()
            self._process.wait(_PATIENCE_S)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """Of the first process, as seen from outside."""
        command = [*self._command, "state", self._name]
        state = subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE_S)
        return int(json.loads(state.stdout)["pid"])

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a program in it, as `kubectl exec` does."""
        words = [*self._command, "exec", self._name, *command]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)

    def stop(self) -> int:
        """Send SIGTERM, as a kubelet does, and wait for the end; returns the exit code."""
        if self._process is None:
            raise RuntimeError("not started")
        subprocess.run([*self._command, "kill", self._name, signal.SIGTERM.name], check=True, timeout=_PATIENCE_S)
        return self._process.wait(_PATIENCE_S)


def _capability_sets(names: Sequence[str], *, ambient: bool) -> dict[str, list[str]]:
    inherited = list(names) if ambient else []
    sets = {name: list(names) for name in ("bounding", "effective", "permitted")}
    return sets | {"inheritable": inherited, "ambient": inherited}


def _bind(source: Path, mount: _VolumeMount) -> dict[str, object]:
    access = "ro" if mount.read_only else "rw"
    return {"destination": mount.mount_path, "type": "bind", "source": str(source), "options": ["rbind", access]}
