"""What adapters of engines have in common as engines under test: what none of them can be asked."""

from collections.abc import Mapping
from typing import NoReturn

from reference.batch import ForwardBatch, Mode
from subjects.protocol import Offer, Overrides, OwnArithmetic


class OthersEngine:
    """An engine that others wrote, which nobody can look into or do otherwise.

    `missing` says what it does not offer, and why.
    """

    missing: Mapping[Offer, str]
    arithmetic: OwnArithmetic | None = None
    eager_modes: frozenset[Mode] = frozenset()

    def equalize_padding(self, mode: Mode, values: Mapping[str, int]) -> None:
        """Do nothing: of an output live rows alone are compared."""

    def python_objects(self) -> NoReturn:
        """Raise RuntimeError: see `missing`."""
        raise RuntimeError(self.missing[Offer.PYTHON_STATE])

    def forward_overridden(
        self, batch: ForwardBatch | None, mode: Mode, overrides: Overrides
    ) -> NoReturn:
        """Raise RuntimeError: nothing of the engine's forward can be done otherwise."""
        raise RuntimeError("nothing of the engine's forward can be done otherwise")

    def replay_in_largest_bucket(self, batch: ForwardBatch) -> NoReturn:
        """Raise RuntimeError: see `missing`."""
        raise RuntimeError(self.missing[Offer.LARGER_BUCKET])

    def notes(self) -> list[str]:
        """Return, in words, what was seen of the engine that no property judges: nothing."""
        return []
