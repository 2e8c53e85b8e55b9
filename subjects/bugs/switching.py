"""Builds subjects of a runner: correct, or with bugs of the catalogue switched on."""

from collections.abc import Iterable
from dataclasses import replace

from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.contracts import Changes, override
from paritybit.subjects.engine import Subject, contract
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme, Toggles

NO_FLIGHT = (
    "it launches no work asynchronously, so no forward is in flight while the host continues"
)


def lacking(bug: Bug, runner: str) -> str | None:
    """Return what `bug` needs and `runner` lacks.

    None if the bug can be switched on in the runner.
    """
    rows = {row.name for row in contract(RUNNERS[runner], bug.scheme)}
    missing = sorted({*bug.rows, *bug.needs} - rows)
    if missing:
        return f"it has no static input {', '.join(missing)}"
    if bug.modes and RUNNERS[runner].mode not in bug.modes:
        return f"it runs no forward of mode {' or '.join(sorted(bug.modes))}"
    return NO_FLIGHT if bug.overlap and not RUNNERS[runner].captures else None


def clean_subject(runner: str, scheme: LocationScheme) -> Subject:
    """Return the correct subject of a runner in a location scheme."""
    return Subject(runner, contract(RUNNERS[runner], scheme), Toggles(scheme))


def broken_subject(bugs: Iterable[Bug], runner: str, scheme: LocationScheme) -> Subject:
    """Return the subject of a runner with bugs switched on, one after another.

    Raises KeyError if a bug cannot be switched on in the runner.
    """
    subject = clean_subject(runner, scheme)
    for bug in bugs:
        subject = switched_on(bug, subject)
    return subject


def switched_on(bug: Bug, subject: Subject) -> Subject:
    """Return a subject with one more bug. Raises KeyError if it cannot be switched on."""
    lacks = lacking(bug, subject.runner)
    if lacks is not None:
        raise KeyError(f"{bug.name} cannot be switched on in {subject.runner}: {lacks}")
    toggles = subject.toggles
    return replace(
        subject,
        contract=override(subject.contract, bug.rows),
        toggles=replace(
            toggles,
            memo_resets=toggles.memo_resets.without(*bug.without),
            **bug.toggles,
        ),
        shared=shared_with(bug, subject),
        parts=subject.parts.with_before(bug.parts),
        model={**subject.model, **bug.model},
    )


def shared_with(bug: Bug, subject: Subject) -> Changes:
    """Return a subject's changes to shared buffers with one more bug."""
    if not (bug.in_shared and RUNNERS[subject.runner].shares_buffers):
        return subject.shared
    before = subject.shared
    changed = {name: {**before.get(name, {}), **fields} for name, fields in bug.rows.items()}
    return {**before, **changed}


def common_scheme(bugs: Iterable[Bug]) -> LocationScheme:
    """Return the first location scheme in which all `bugs` can be switched on.

    Raises ValueError if there is none.
    """
    wanted = list(bugs)
    for scheme in (scheme for bug in wanted for scheme in bug.schemes):
        if all(scheme in bug.schemes for bug in wanted):
            return scheme
    message = ", ".join(f"{bug.name} needs {' or '.join(bug.schemes)}" for bug in wanted)
    raise ValueError(f"bugs with different location schemes cannot be combined: {message}")
