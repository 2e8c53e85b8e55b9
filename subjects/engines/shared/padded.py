"""What padding an engine's static inputs have, and what it declares of that. Knows no engine."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from reference.batch import ForwardBatch

KEPT, RESET = "kept", "reset"


@dataclass(frozen=True)
class DeclaredPadding:
    """What the engine declares that the padding of a buffer holds: its word, and its meaning.

    `meaning` is "kept" or "reset", to `value`; None for a word that is not known.
    """

    word: str
    meaning: str | None
    value: Any


@dataclass(frozen=True)
class PaddedInput:
    """A static input whose last axis is the batch's, `each` elements for a request.

    `holds` is the name of our own input that holds the same: its valid values are known.
    """

    buffer: Tensor
    holds: str
    each: int = 1

    def tail(self, batch: ForwardBatch, bucket: int) -> Tensor:
        """Return the padding of a batch that is replayed in a bucket of so many requests."""
        return self.buffer[..., batch.live_requests * self.each : bucket * self.each]
