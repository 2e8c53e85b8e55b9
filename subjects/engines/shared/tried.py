"""What a trial asks of an engine beside what every engine under test offers."""

from collections.abc import Mapping
from typing import Protocol

from reference.batch import Mode
from reference.config import Kind
from subjects.engines.shared.padded import DeclaredPadding, PaddedInput
from subjects.protocol import EngineUnderTest, OwnArithmetic


class TriedEngine(EngineUnderTest, Protocol):
    """One of an engine's runners, which runs batches of `mode`."""

    mode: Mode
    arithmetic: OwnArithmetic | None

    def notes(self) -> list[str]:
        """Return, in words, what was seen of the engine that no property judges."""
        ...

    def slot_named(self, name: str, value: int) -> tuple[Kind, int] | None:
        """Return the world's slot that a value of a static input names; None if it names none."""
        ...

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs that have a padded tail, by name."""
        ...

    def declared_padding(self) -> Mapping[str, DeclaredPadding]:
        """Return the padding policies that the engine itself declares, where it does."""
        ...
