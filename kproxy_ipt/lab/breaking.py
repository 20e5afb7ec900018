"""
A fault to be found: `lab break` makes one, `lab check` judges whether it is gone, `lab fix` undoes it.

What was broken stands in a file of the lab, with the objects as they were. A fault that its finder cured keeps its
file, since another way of curing it leaves another lab than before; the next `break` begins by repairing.
"""

import os
import random
from collections.abc import Mapping, Sequence

import msgspec

from kproxy_ipt.errors import ConfigError, KernelError, MissingPrivilegeError, SourceError
from kproxy_ipt.lab.client import running_state
from kproxy_ipt.lab.fault_texts import FAULT_TEXTS, FaultText, Words
from kproxy_ipt.lab.faults import FAULTS, WEB, Breaker
from kproxy_ipt.lab.judge import Expectation, judge
from kproxy_ipt.lab.layout import Layout

EXPECTED: Mapping[str, Expectation] = {
    "source-ranges": Expectation(balancer=True),
    "stale-conntrack": Expectation(statsd=True),
}
"""What the lab of a fault has beside the usual."""
_SHOWS_S = 15.0
_TRIES = 3
_HEALS_S = 20.0
_SETTLES_S = 3.0


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    The fault of a lab.

    Attributes:
        name: One of `FAULT_TEXTS`.
        kept: The objects as they were before.
        hints: How many were asked for.
        solved: Whether the lab was judged healthy since.
    """

    name: str
    kept: Sequence[dict[str, object]]
    hints: int = 0
    solved: bool = False

    @property
    def text(self) -> FaultText:
        """The fault in words."""
        return FAULT_TEXTS[self.name]


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """
    What `lab check` found.

    Attributes:
        symptoms: What is wrong; none means that the lab is healthy.
        record: The fault that was made, if any; as it was before this judgement.
        hints: Those that were asked for so far.
    """

    symptoms: Sequence[Words]
    record: FaultRecord | None
    hints: Sequence[Words] = ()


def break_lab(layout: Layout, name: str, seed: int | None) -> FaultRecord:
    """
    Break a lab, and wait until it shows.

    Args:
        layout: Which lab.
        name: One of `FAULTS`, or "" for one at random.
        seed: For the choice; the same seed chooses the same fault.

    Raises:
        ConfigError: It is broken already, has no Service `web` to break, or there is no such fault.
        KernelError: The fault could not be made; what was done of it is undone.
        SourceError: The lab does not run.
        MissingPrivilegeError: Not root.
    """
    if name and name not in FAULTS:
        raise ConfigError((f"there is no fault {name!r}: kproxy-ipt lab break --list names them",))
    breaker = _breaker(layout)
    before = read_record(layout)
    if before is not None and not before.solved:
        raise ConfigError((f"lab {layout.name} is broken already: find the fault, or kproxy-ipt lab fix",))
    if before is not None:
        fix_lab(layout)
    try:
        kept = [dict(document) for document in breaker.kept()]
    except SourceError as error:
        raise ConfigError((f"the lab has no Deployment and Service {WEB} to break: {error}",)) from error
    chosen = name or random.Random(seed).choice(sorted(FAULTS))
    record = FaultRecord(name=chosen, kept=kept)
    _write(layout, record)
    try:
        breaker.inject(chosen)
        if not _shows(layout, _expected(record)):
            raise KernelError(f"the fault {chosen} does not show on this machine")
    except BaseException:
        fix_lab(layout)
        raise
    return record


def _shows(layout: Layout, expected: Expectation) -> bool:
    """Whether something is wrong, and stays so: a moment without an answer belongs to any change."""
    for _ in range(_TRIES):
        if not judge(layout, expected, patience_s=_SHOWS_S, wants_symptom=True):
            return False
        if judge(layout, expected, patience_s=0):
            return True
    return False


def fix_lab(layout: Layout) -> FaultRecord | None:
    """
    Undo a fault, whatever became of it, and wait until the lab is healthy.

    Returns:
        The fault that there was, if any is known.

    Raises:
        KernelError: The lab is not healthy even so.
        SourceError: The lab does not run.
        MissingPrivilegeError: Not root.
    """
    breaker, record = _breaker(layout), read_record(layout)
    breaker.repair(record.kept if record else ())
    layout.fault.unlink(missing_ok=True)
    symptoms = judge(layout, Expectation(), patience_s=_HEALS_S)
    if symptoms:
        shown = "; ".join(each.en for each in symptoms)
        raise KernelError(f"no fault of `lab break` is left, and still: {shown}; lab down and up make it anew")
    return record


def check_lab(layout: Layout, *, with_hint: bool = False) -> Judgement:
    """
    Judge a lab.

    Args:
        layout: Which lab.
        with_hint: Ask for one hint more than the last time.

    Raises:
        SourceError: The lab does not run.
        MissingPrivilegeError: Not root, so that no namespace can be entered.
    """
    _check_root()
    record = read_record(layout)
    symptoms = judge(layout, _expected(record), patience_s=_SETTLES_S)
    if record is None:
        return Judgement(symptoms=symptoms, record=None)
    told = min(record.hints + with_hint, len(record.text.hints)) if symptoms else record.hints
    _write(layout, msgspec.structs.replace(record, hints=told, solved=record.solved or not symptoms))
    return Judgement(symptoms=symptoms, record=record, hints=record.text.hints[:told] if with_hint else ())


def read_record(layout: Layout) -> FaultRecord | None:
    """The fault of a lab, or None."""
    try:
        return msgspec.json.decode(layout.fault.read_bytes(), type=FaultRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def _expected(record: FaultRecord | None) -> Expectation:
    return EXPECTED.get(record.name, Expectation()) if record else Expectation()


def _breaker(layout: Layout) -> Breaker:
    _check_root()
    return Breaker(layout, running_state(layout))


def _check_root() -> None:
    if os.geteuid() != 0:
        raise MissingPrivilegeError("breaking and judging a lab needs root, as making it did")


def _write(layout: Layout, record: FaultRecord) -> None:
    layout.fault.write_bytes(msgspec.json.encode(record))
