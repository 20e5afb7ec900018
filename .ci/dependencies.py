"""
Are the dependencies those that are locked? What was not checked is said, never passed over.

::

    python .ci/dependencies.py            # pyproject.toml against .ci/locked/, that against what is installed
    python .ci/dependencies.py --audit    # known vulnerabilities too: pip-audit asks a service for them

The first asks nobody outside of this machine. Exit status: 0, or 1 if something is wrong.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

_ALWAYS = ("build", "project", "dev", "docs")
"""Files that `make setup` installs; the others come with the targets that need them."""
_PYTHON = "Programming Language :: Python :: "
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Pin:
    """One version of a package in one file; *applies* where its marker, if there is one, says so."""

    name: str
    version: Version
    marker: Marker | None

    def applies(self, python: str = "") -> bool:
        """Whether it is for this machine, or one of its kind with another *python* (`3.13`)."""
        return _holds(self.marker, python)


@dataclass(frozen=True)
class Project:
    """What pyproject.toml asks for, by file of .ci/locked/, and the versions of Python that it is for."""

    wanted: Mapping[str, tuple[Requirement, ...]]
    pythons: tuple[str, ...]


def _holds(marker: Marker | None, python: str) -> bool:
    environment = {"python_version": python, "python_full_version": f"{python}.0"} if python else None
    return marker is None or marker.evaluate(environment)


def read_project(root: Path) -> Project:
    """What the pyproject.toml in *root* asks for."""
    content = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    asked: dict[str, list[str]] = {"project": content["project"]["dependencies"], **content["dependency-groups"]}
    asked["build"] = [*asked.get("build", []), *content["build-system"]["requires"]]
    classifiers: list[str] = content["project"]["classifiers"]
    return Project(
        {name: tuple(Requirement(line) for line in lines) for name, lines in asked.items()},
        tuple(line.removeprefix(_PYTHON) for line in classifiers if line.startswith(_PYTHON)),
    )


def read_pins(text: str, faults: list[str]) -> Iterator[Pin]:
    """The pins of a file; lines that are none, or lack hashes, are told to *faults*."""
    for line in text.replace("\\\n", " ").splitlines():
        words, *hashes = (part.strip() for part in line.split("--hash="))
        if not words or words.startswith("#"):
            continue
        try:
            requirement = Requirement(words)
        except InvalidRequirement:
            faults.append(f"not a package: {words}")
            continue
        exact = re.fullmatch(r"==([^*]+)", str(requirement.specifier))
        if exact is None or requirement.url:
            faults.append(f"no exact version: {words}")
            continue
        if not hashes or not all(_HASH.fullmatch(each) for each in hashes):
            faults.append(f"no hashes: {words}")
        yield Pin(canonicalize_name(requirement.name), Version(exact[1]), requirement.marker)


def read_locked(root: Path, faults: list[str]) -> Mapping[str, tuple[Pin, ...]]:
    """The pins of each file of .ci/locked/ by its name."""
    locked = {}
    for path in sorted((root / ".ci" / "locked").glob("*.txt")):
        text, found = path.read_text(encoding="utf-8"), list[str]()
        locked[path.stem] = tuple(read_pins(text, found))
        if "://" in text:
            found.append("names a host: where packages come from is for each machine to say")
        faults += [f"{path.name}: {fault}" for fault in found]
    return locked


def lock_faults(project: Project, locked: Mapping[str, tuple[Pin, ...]]) -> Iterator[str]:
    """Where the files are not what *project* asks for, or contradict each other."""
    for file in sorted({*project.wanted} ^ {*locked}):
        yield f"{file}.txt: " + ("missing" if file in project.wanted else "pyproject.toml has no such group")
    for file in sorted({*project.wanted} & {*locked}):
        for requirement in project.wanted[file]:
            pins = [pin for pin in locked[file] if pin.name == canonicalize_name(requirement.name)]
            yield from (f"{file}.txt: {fault}" for fault in _requirement_faults(requirement, pins, project.pythons))
    every = [pin for pins in locked.values() for pin in pins]
    for python in project.pythons:
        for name, versions in sorted(_versions(pin for pin in every if pin.applies(python)).items()):
            if len(versions) > 1:
                yield f"Python {python}: {name} in several versions: {_listed(versions)}"


def _requirement_faults(requirement: Requirement, pins: Sequence[Pin], pythons: Iterable[str]) -> Iterator[str]:
    for pin in pins:
        if not requirement.specifier.contains(pin.version, prereleases=True):
            yield f"{pin.name} {pin.version}, pyproject.toml asks for {requirement}"
    needing = [python for python in pythons if _holds(requirement.marker, python)]
    lacking = [python for python in needing if not any(pin.applies(python) for pin in pins)]
    if lacking:
        yield f"no {requirement} for Python {', '.join(lacking)}"


def _versions(pins: Iterable[Pin]) -> Mapping[str, set[Version]]:
    versions: dict[str, set[Version]] = defaultdict(set)
    for pin in pins:
        versions[pin.name].add(pin.version)
    return versions


def _listed(versions: Iterable[Version]) -> str:
    return ", ".join(map(str, sorted(versions)))


def installed_versions() -> Mapping[str, Version]:
    """What is installed beside this Python, by canonical name."""
    return {canonicalize_name(each.name): Version(each.version) for each in metadata.distributions()}


def installed_faults(locked: Mapping[str, tuple[Pin, ...]], installed: Mapping[str, Version]) -> Iterator[str]:
    """Where *installed* is not what is locked: another version, or missing though every checkout has it."""
    needed = {pin.name for file in _ALWAYS for pin in locked.get(file, ()) if pin.applies()}
    for name, versions in sorted(_versions(_here(locked)).items()):
        if name not in installed and name in needed:
            yield f"{name} is not installed, {_listed(versions)} is locked"
        elif name in installed and {installed[name]} != versions:
            yield f"{name} {installed[name]} is installed, {_listed(versions)} is locked"


def _here(locked: Mapping[str, tuple[Pin, ...]]) -> Iterator[Pin]:
    return (pin for pins in locked.values() for pin in pins if pin.applies())


class _Vulnerability(msgspec.Struct, frozen=True):
    id: str
    fix_versions: tuple[str, ...] = ()


class _Audited(msgspec.Struct, frozen=True):
    name: str
    version: str = ""
    skip_reason: str = ""
    vulns: tuple[_Vulnerability, ...] = ()


class _Audit(msgspec.Struct, frozen=True):
    dependencies: tuple[_Audited, ...]


def vulnerabilities(root: Path, program: str, service: str, say: list[str]) -> Iterator[str]:
    """Known vulnerabilities of what is locked for this Python; who could not be asked about is told to *say*."""
    files = [f"--requirement={path}" for path in sorted((root / ".ci" / "locked").glob("*.txt"))]
    command = [program, "--format=json", "--progress-spinner=off", f"--vulnerability-service={service}"]
    command += ["--require-hashes", "--disable-pip", *files]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        audit = msgspec.json.decode(done.stdout, type=_Audit)
    except (OSError, subprocess.TimeoutExpired) as error:
        say.append(f"NOT CHECKED: vulnerabilities: {error}")
        return
    except msgspec.MsgspecError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        say.append(f"NOT CHECKED: vulnerabilities: {program} has no answer (exit status {done.returncode}): {last}")
        return
    skipped = [each for each in audit.dependencies if each.skip_reason]
    asked = len(audit.dependencies) - len(skipped)
    if skipped:
        say.append(
            f"NOT CHECKED: vulnerabilities of {len(skipped)} of {len(audit.dependencies)} packages, since the "
            f"service {service} does not know them or cannot be reached: {skipped[0].skip_reason}"
        )
    say.append(f"vulnerabilities: the service {service} answered about {asked} packages")
    for each in audit.dependencies:
        for one in each.vulns:
            yield f"{each.name} {each.version}: {one.id}, fixed in {', '.join(one.fix_versions) or 'no version'}"


def main() -> int:
    """Check, and say what is wrong and what was not checked; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("--audit", action="store_true", help="ask for known vulnerabilities too")
    parser.add_argument("--program", default=str(Path(sys.executable).with_name("pip-audit")), help="pip-audit")
    parser.add_argument("--service", default="pypi", choices=("pypi", "osv"), help="whom it asks")
    options = parser.parse_args()
    faults: list[str] = []
    project, locked, installed = read_project(options.root), read_locked(options.root, faults), installed_versions()
    faults += [*lock_faults(project, locked), *installed_faults(locked, installed)]
    pip = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    faults += [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()
    here = {pin.name for pin in _here(locked)}
    say = [f"dependencies: {len(here & {*installed})} packages compared with {len(locked)} files of .ci/locked"]
    extra = sorted({*installed} - here - {"kproxy-ipt"})
    say += [f"NOT CHECKED: installed, not locked: {', '.join(extra)}"] if extra else []
    if options.audit:
        faults += vulnerabilities(options.root, options.program, options.service, say)
    else:
        say.append("NOT CHECKED: known vulnerabilities (make audit)")
    sys.stdout.write("".join(f"{line}\n" for line in say))
    sys.stderr.write("".join(f"{line}\n" for line in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
