"""Builds subjects of a runner: correct, or with bugs of the catalogue switched on."""

from collections.abc import Sequence
from dataclasses import replace

from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.contracts import RowChanges, override
from paritybit.subjects.engine import Subject, contract
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.toggles import LocationScheme, Parts, Toggles


def subject_with(bugs: Sequence[Bug], runner: str, scheme: LocationScheme) -> Subject:
    """Return the subject of a runner with bugs switched on. All of them must fit the runner."""
    toggles, rows = Toggles(scheme), contract(RUNNERS[runner], scheme)
    shared: RowChanges = {}
    model: dict[str, int] = {}
    shares = RUNNERS[runner].shares_buffers
    for bug in bugs:
        toggles = replace(toggles, sites=toggles.sites.difference(bug.without))
        rows = override(rows, bug.rows)
        shared = {**shared, **bug.rows} if bug.in_shared and shares else shared
        model |= bug.model
    parts = Parts(tuple(part for bug in reversed(bugs) for part in bug.parts))
    return Subject(runner, rows, toggles, shared, parts, model)


def common_scheme(bugs: Sequence[Bug]) -> LocationScheme:
    """Return the first location scheme in which all `bugs` can be switched on.

    Raises ValueError if there is none.
    """
    for scheme in (scheme for bug in bugs for scheme in bug.schemes):
        if all(scheme in bug.schemes for bug in bugs):
            return scheme
    message = ", ".join(f"{bug.name} needs {' or '.join(bug.schemes)}" for bug in bugs)
    raise ValueError(f"bugs with different location schemes cannot be combined: {message}")
