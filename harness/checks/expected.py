"""What a row of the table of expectations says, and the kinds of runner that are its columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paritybit.reference.batch import Mode


@dataclass(frozen=True)
class RunnerKind:
    """What runners have in common that a bug affects alike: the mode, and whether it is captured.

    A runner of a mode that captures nothing meets other bugs than one that does.
    """

    mode: Mode
    captures: bool = True


@dataclass(frozen=True)
class Row:
    """One bug: the property that must see it on the kinds it affects, and why the others are not.

    A pair of a bug and a runner that lacks what it is about needs no cell. `instead` names the
    property on kinds where it is another one.
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
    """Return the row of a bug that shows on the kinds `affected`, and not on those of `but`.

    On the kinds of `instead` it shows too, and another property must see it.
    """
    others = instead or {}
    return Row(detected_by, frozenset((*affected, *others)), but or {}, others)


def masked(reason: str) -> Row:
    """Return the row of a bug that shows on no runner, since something else hides it."""
    return Row(None, frozenset(), dict.fromkeys(KINDS, reason))


def always_replayed(reason: str) -> dict[RunnerKind, str]:
    """Return one reason for the kinds of which every forward is the replay of one graph."""
    return dict.fromkeys((DECODE, VERIFY, DRAFT, FROZEN), reason)
