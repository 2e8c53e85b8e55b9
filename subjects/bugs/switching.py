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
