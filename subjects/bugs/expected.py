"""Expectations: which property must detect a bug on a kind of runner, or why none can.

The properties are those in `harness/checks/table.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paritybit.reference.batch import Mode


@dataclass(frozen=True)
class RunnerKind:
    """The mode of a runner, and whether it captures graphs.

    A bug has the same effect on all runners of a kind.
    """

    mode: Mode
    captures: bool = True


@dataclass(frozen=True)
class Row:
    """One bug: the property that must detect it on `affected` kinds, and why other kinds are not.

    `instead` has the kinds on which another property must detect it. A kind of runner in which the
    bug cannot be switched on needs no cell.
    """

    detected_by: str | None
    affected: frozenset[RunnerKind]
    unaffected: Mapping[RunnerKind, str]
    instead: Mapping[RunnerKind, str] = field(default_factory=dict)


DECODE = RunnerKind(Mode.DECODE)
COMPILED = RunnerKind(Mode.DECODE, captures=False)
VERIFY = RunnerKind(Mode.TARGET_VERIFY)
DRAFT = RunnerKind(Mode.DRAFT)
FROZEN = RunnerKind(Mode.FROZEN_DRAFT)
DRAFT_EXTEND = RunnerKind(Mode.DRAFT_EXTEND)
PREFILL = RunnerKind(Mode.EXTEND)

KINDS = (DECODE, COMPILED, VERIFY, DRAFT, FROZEN, DRAFT_EXTEND, PREFILL)


def seen(
    detected_by: str,
    *affected: RunnerKind,
    but: Mapping[RunnerKind, str] | None = None,
    instead: Mapping[RunnerKind, str] | None = None,
) -> Row:
    """Return the row of a bug that affects the kinds `affected`, and not those of `but`.

    It also affects the kinds of `instead`, where another property must detect it.
    """
    others = instead or {}
    return Row(detected_by, frozenset((*affected, *others)), but or {}, others)


def masked(reason: str) -> Row:
    """Return the row of a bug that affects no runner, because something else hides it."""
    return Row(None, frozenset(), dict.fromkeys(KINDS, reason))


def always_replayed(reason: str) -> dict[RunnerKind, str]:
    """Return one reason for the kinds in which each forward replays a single graph."""
    return dict.fromkeys((DECODE, VERIFY, DRAFT, FROZEN), reason)
