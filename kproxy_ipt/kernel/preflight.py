"""
Can this machine do what our rules need? Everything is tried, nothing is left behind, and each gap has its price.

Every form of rule is written for real, in network namespaces made for that; of the namespace that was asked about
tables and settings are only read. Both backends are tried, the verdict is about the one that would be used.

Decided against: asking which modules are loaded (many kernels have them built in, others load them when a rule needs
them), and judging by versions (distributions carry fixes back). What the kernel says about itself is shown beside.

In `auto`, legacy is not tried where the kernel has not loaded it: older kernels make tables in every namespace with
their modules, and an nft node would then have both.
"""

import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Literal

import msgspec

from kproxy_ipt.addresses import Family
from kproxy_ipt.errors import KernelError, MissingPrivilegeError, NamespaceError
from kproxy_ipt.kernel.backend import Backend, Decision, absent_family, decide
from kproxy_ipt.kernel.command import Runner, program_environment
from kproxy_ipt.kernel.preflight_forms import BASELINE, RuleForm, rule_forms
from kproxy_ipt.kernel.preflight_probe import refused
from kproxy_ipt.kernel.preflight_state import (
    Setting,
    TablesInUse,
    kernel_config,
    settings,
    side_by_side,
    tables_in_use,
)
from kproxy_ipt.kernel.programs import Programs
from kproxy_ipt.kernel.refusals import kernel_option
from kproxy_ipt.kernel.xtables_proc import kernel_extensions
from kproxy_ipt.rules.fallbacks import FALLBACKS
from kproxy_ipt.state.model import OptionalPart

_TABLES_OPTION = {
    Backend.NFT: "CONFIG_NFT_COMPAT",
    Backend.LEGACY: "CONFIG_IP_NF_IPTABLES",
}


class Fitness(IntEnum):
    """The verdict; its number is the exit code of the command."""

    COMPLETE = 0
    """Everything is there."""
    REDUCED = 1
    """Something optional is missing and replaced, or one of several families is left out."""
    UNFIT = 2
    """It cannot work, or nobody can tell."""


class FormResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    One form on one backend for one family.

    Attributes:
        part: What it belongs to, or None: nothing works without it.
        is_there: Whether it was taken.
        reason: Why it was not, in the words of program or kernel.
        option: Build option of the kernel.
        configured: `y`, `m`, `n`, or "" where the kernel does not tell.
        listed: Whether the kernel lists the extension for legacy iptables; None where it does not tell.
        optional: Whether rules can do without.
        concerns: What needs it.
        instead: What is done without it; "" where nothing works.
    """

    name: str
    part: OptionalPart | None
    is_there: bool
    reason: str = ""
    option: str
    configured: str
    listed: bool | None
    concerns: str
    instead: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """
    All forms on one backend for one family.

    Attributes:
        program: Path of the restore program.
        resolved: What that path leads to.
        version: The line that the program prints about itself.
        is_chosen: Whether the backend is the one that would be used.
        results: Of each form; empty where nothing was tried.
        problem: Why nothing was tried or can be told, or "".
        is_absent: Whether the family is not there at all, which is nobody's fault.
    """

    backend: Backend
    family: Family
    program: str
    resolved: str
    version: str
    is_chosen: bool
    results: tuple[FormResult, ...] = ()
    problem: str = ""
    is_absent: bool = False

    @property
    def fitness(self) -> Fitness:
        """The verdict about this backend and family."""
        gaps = [result for result in self.results if not result.is_there]
        if self.is_absent:
            return Fitness.REDUCED
        if self.problem or any(gap.part is None for gap in gaps):
            return Fitness.UNFIT
        return Fitness.REDUCED if gaps else Fitness.COMPLETE


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    Everything that was found out.

    Attributes:
        kernel: Its release.
        backend: The one that would be used; *reason* says why.
        plain: The backend of the programs called just `iptables` and `ip6tables`, by family, "" where there are none.
        trials: Of each backend and family that has programs.
        untried: A line for each backend or family that was not tried.
        in_use: Rules in each backend.
        conflict: A line about rules in both backends, or "".
        settings: Limits and settings.
    """

    kernel: str
    backend: Backend
    reason: str
    plain: Mapping[Family, str]
    trials: tuple[Trial, ...]
    untried: tuple[str, ...]
    in_use: tuple[TablesInUse, ...]
    conflict: str
    settings: tuple[Setting, ...]

    @property
    def fitness(self) -> Fitness:
        """The verdict about the backend that would be used: at least one family must work, none may be in doubt."""
        chosen = [trial for trial in self.trials if trial.is_chosen]
        if all(trial.is_absent for trial in chosen):
            return Fitness.UNFIT
        worst = max(trial.fitness for trial in chosen)
        return max(worst, Fitness.REDUCED) if len(chosen) < len(self.plain) else worst


def preflight(runner: Runner, wanted: Literal["auto", "nft", "legacy"], families: Sequence[Family]) -> PreflightReport:
    """
    Try everything for the current network namespace.

    Args:
        runner: Starts the programs.
        wanted: A backend, or `auto` for both.
        families: One or two.

    Raises:
        MissingProgramError: No iptables program, or none of the wanted backend.
        MissingPrivilegeError: The tables may not be read.
        NamespaceError: No namespace may be made to try in.
    """
    decision = decide(runner, wanted, families)
    in_use = tables_in_use(runner, decision.installed)
    untried: list[str] = []
    programs = [*_to_try(decision, wanted, untried)]
    config = kernel_config()
    return PreflightReport(
        kernel=platform.release(),
        backend=decision.backend,
        reason=decision.reason,
        plain={family: found.plain or "" for family, found in decision.installed.items()},
        trials=tuple(_trial(runner, each, config, is_chosen=each.backend is decision.backend) for each in programs),
        untried=tuple(untried),
        in_use=in_use,
        conflict=side_by_side(in_use),
        settings=settings(families),
    )


def _to_try(decision: Decision, wanted: str, untried: list[str]) -> Iterator[Programs]:
    """The programs to try, the chosen backend first; what is left out is told to *untried*."""
    others = [backend for backend in Backend if backend is not decision.backend] if wanted == "auto" else []
    for backend in (decision.backend, *others):
        for family, found in decision.installed.items():
            if backend not in found.programs:
                untried.append(
                    f"{family} {backend}: " + ("; ".join(found.problems) or "its programs are not installed")
                )
            elif backend is not decision.backend and backend is Backend.LEGACY and kernel_extensions(family) is None:
                untried.append(f"{family} legacy: the kernel has not loaded it; --backend legacy tries it all the same")
            else:
                yield found.programs[backend]


def _trial(runner: Runner, programs: Programs, config: Mapping[str, str], *, is_chosen: bool) -> Trial:
    path = shutil.which(programs.restore[0], path=program_environment()["PATH"]) or programs.restore[0]
    trial = Trial(
        backend=programs.backend,
        family=programs.family,
        program=" ".join((path, *programs.restore[1:])),
        resolved=str(Path(path).resolve()),
        version=programs.version_text,
        is_chosen=is_chosen,
    )
    absent = absent_family(programs.family)
    if absent:
        return msgspec.structs.replace(trial, problem=absent, is_absent=True)
    try:
        reasons = _reasons(runner, programs)
    except (MissingPrivilegeError, NamespaceError):
        raise
    except KernelError as error:
        return msgspec.structs.replace(trial, problem=str(error))
    if reasons[BASELINE.name]:
        return msgspec.structs.replace(trial, problem=f"it takes no rules at all: {reasons[BASELINE.name]}")
    listed = kernel_extensions(programs.family)
    forms = rule_forms(programs.family)
    results = tuple(_result(form, reasons[form.name], programs, config, listed) for form in forms)
    return msgspec.structs.replace(trial, results=results)


def _reasons(runner: Runner, programs: Programs) -> Mapping[str, str]:
    """Why each form is refused, by its name, "" where it is not: all at once if that works, else one by one."""
    forms = rule_forms(programs.family)
    if not refused(runner, programs, forms):
        return dict.fromkeys((form.name for form in forms), "")
    baseline = refused(runner, programs, [BASELINE])
    if baseline:
        return {BASELINE.name: baseline}
    return {form.name: refused(runner, programs, [form]) for form in forms}


def _result(
    form: RuleForm, reason: str, programs: Programs, config: Mapping[str, str], listed: frozenset[str] | None
) -> FormResult:
    option = _option(form, programs)
    fallback = FALLBACKS[form.part] if form.part else None
    return FormResult(
        name=form.name,
        part=form.part,
        is_there=not reason,
        reason=reason,
        option=option,
        configured=config.get(option, "n") if config else "",
        listed=form.extension in listed if listed is not None and form.extension else None,
        concerns=fallback.concerns if fallback else form.concerns,
        instead=fallback.instead if fallback else "",
    )


def _option(form: RuleForm, programs: Programs) -> str:
    if not form.extension:
        return _TABLES_OPTION[programs.backend]
    first, _, second = kernel_option(form.extension).partition(" or ")
    return second if second and programs.family is Family.IPV6 else first
