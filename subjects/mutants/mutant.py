"""All mutants: one mistake with one static buffer of one runner in one location scheme."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from paritybit.reference.config import PRESETS
from paritybit.subjects.bugs.switching import clean_subject
from paritybit.subjects.contracts import Policy, StaticInput, override
from paritybit.subjects.engine import Subject, contract
from paritybit.subjects.mutants import inputs, lists
from paritybit.subjects.mutants.lists import OTHER_DTYPES
from paritybit.subjects.parts import Part
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.toggles import LocationScheme

from paritybit.compat import StrEnum


class Mistake(StrEnum):
    """The kinds of mistakes with a static buffer."""

    NEVER_RESET = "never reset"
    FIRST_NOT_RESET = "first padded element not reset"
    LAST_NOT_RESET = "last element not reset"
    RESET_AFTER_COPY = "reset after the copy"
    WRONG_FILL = "wrong fill"
    COPIED_SHORT = "copied one short"
    LATE = "late by one replay"
    FROZEN = "frozen at capture"
    WRONG_DTYPE = "wrong dtype"
    REBOUND = "address rebound"


OF_RESETS = frozenset(
    {
        Mistake.NEVER_RESET,
        Mistake.FIRST_NOT_RESET,
        Mistake.LAST_NOT_RESET,
        Mistake.RESET_AFTER_COPY,
    }
)
"""Mistakes that apply only to inputs that are reset."""

INPUT_CLASSES: Mapping[Mistake, type[inputs.MistakenInputs]] = {
    Mistake.FIRST_NOT_RESET: inputs.FirstPaddedNotReset,
    Mistake.LAST_NOT_RESET: inputs.LastNotReset,
    Mistake.RESET_AFTER_COPY: inputs.ResetAfterCopy,
    Mistake.WRONG_FILL: inputs.WrongTail,
    Mistake.COPIED_SHORT: inputs.CopiedOneShort,
    Mistake.LATE: inputs.LateByOne,
    Mistake.FROZEN: inputs.FrozenAtCapture,
    Mistake.REBOUND: inputs.AddressRebound,
}
"""The classes for mistakes with a static input that need code."""

ROW_CHANGES: Mapping[Mistake, Callable[[StaticInput], Mapping[str, Any]]] = {
    Mistake.NEVER_RESET: lambda row: {"policy": Policy.KEEP},
    Mistake.WRONG_FILL: lambda row: {
        "value": row.value + 1,
        "allocated": row.value if row.allocated is None else row.allocated,
    },
    Mistake.WRONG_DTYPE: lambda row: {"dtype": OTHER_DTYPES[row.dtype]},
}
"""The changes of a contract row for mistakes that are data."""

LIST_CLASSES: Mapping[Mistake, type[lists.MistakenLists]] = {
    Mistake.COPIED_SHORT: lists.ListCopiedOneShort,
    Mistake.LATE: lists.ListLateByOne,
    Mistake.FROZEN: lists.ListFrozenAtCapture,
    Mistake.WRONG_DTYPE: lists.ListOfWrongDtype,
    Mistake.REBOUND: lists.ListRebound,
}
"""The classes for mistakes with a list of attention metadata, which is written whole."""


@dataclass(frozen=True)
class Mutant:
    """One mistake with one static buffer."""

    runner: str
    scheme: LocationScheme
    buffer: str
    mistake: Mistake

    @property
    def name(self) -> str:
        """The mutant's name."""
        return f"{self.runner}/{self.scheme}/{self.buffer}: {self.mistake}"


def makes_sense(mistake: Mistake, row: StaticInput) -> bool:
    """Whether a mistake with a row changes anything."""
    if mistake is Mistake.WRONG_FILL:
        return row.policy is not Policy.KEEP
    return mistake not in OF_RESETS or row.policy is Policy.RESET


@cache
def metadata(runner: type[GraphRunner]) -> tuple[str, ...]:
    """Return the names of a runner's static lists, which do not depend on the model."""
    bare: Any = object.__new__(runner)
    bare.target = bare.draft = SimpleNamespace(config=next(iter(PRESETS.values())).tiny)
    return tuple(runner.metadata_sizes(bare, 1))


def mutants() -> Iterator[Mutant]:
    """Yield every mutant of every runner."""
    for name, runner in RUNNERS.items():
        for scheme in LocationScheme:
            for row in contract(runner, scheme):
                for mistake in Mistake:
                    if makes_sense(mistake, row):
                        yield Mutant(name, scheme, row.name, mistake)
            for listed in metadata(runner):
                for mistake in LIST_CLASSES:
                    yield Mutant(name, scheme, listed, mistake)


def mutated_subject(mutant: Mutant) -> Subject:
    """Return the correct subject with one mistake."""
    subject = clean_subject(mutant.runner, mutant.scheme)
    row = next((row for row in subject.contract if row.name == mutant.buffer), None)
    if row is None:
        return with_parts(subject, mutant, {Part.METADATA: LIST_CLASSES[mutant.mistake]})
    # The harness overwrites inputs that are filled once, so a wrong fill of these needs code.
    overwritten = mutant.mistake is Mistake.WRONG_FILL and row.policy is Policy.FILL_ONCE
    if mutant.mistake in ROW_CHANGES and not overwritten:
        change = {row.name: ROW_CHANGES[mutant.mistake](row)}
        return replace(subject, contract=override(subject.contract, change))
    before: dict[Part, type] = {
        Part.INPUTS: INPUT_CLASSES[mutant.mistake],
        Part.RUNNER: inputs.BeginsPopulating,
    }
    return with_parts(subject, mutant, before)


def with_parts(subject: Subject, mutant: Mutant, before: Mapping[Part, type]) -> Subject:
    """Return a subject with classes before its parts, bound to the mutated buffer."""
    bound = {
        part: type(kind.__name__, (kind,), {"mutated": mutant.buffer, "__doc__": kind.__doc__})
        for part, kind in before.items()
    }
    return replace(subject, parts=subject.parts.with_before(bound))
