"""What padding an engine's static inputs have, and what it declares of that. Knows no engine."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch
from paritybit.subjects.engines.shared.missing import PartMissingError
from torch import Tensor

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


@dataclass(frozen=True)
class PaddedTokens(PaddedInput):
    """A static input of tokens, of a runner whose buckets count those."""

    def tail(self, batch: ForwardBatch, bucket: int) -> Tensor:
        """Return the padding of a batch that is replayed in a bucket of so many tokens."""
        return self.buffer[..., batch.live_tokens : bucket]


@dataclass(frozen=True)
class PaddingRow:
    """What a static input holds behind its live part, if the engine promises it.

    `value` is called with the live tokens. It holds to the end of the buffer, or with
    `in_bucket` to that of the bucket. `promised` says whether a runner's release does.
    Elements are of tokens, or `of_requests`.
    """

    name: str
    value: Callable[[int], int]
    in_bucket: bool = False
    promised: Callable[[Any], bool] = lambda runner: True
    of_requests: bool = False


def padding_of(
    rows: Iterable[PaddingRow],
    statics: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    batch: ForwardBatch,
    bucket: int,
    tokens_per_request: int,
) -> dict[str, tuple[int, Tensor]]:
    """Return, by static input, where padding begins behind a batch's live part and what it holds.

    A row of a table is one element of it. Raises PartMissingError where an input is not there of
    which something is promised.
    """
    found = dict[str, tuple[int, Tensor]]()
    for row in rows:
        if row.name not in statics:
            raise PartMissingError(
                f"the padding policy names static input {row.name}, which the engine does not have"
            )
        held = statics[row.name]
        live = len(given[row.name]) if row.name in given else batch.live_requests
        end = bucket * (1 if row.of_requests else tokens_per_request)
        last = end if row.in_bucket else held.shape[0]
        found[row.name] = live, torch.full_like(held[live:last], row.value(batch.live_tokens))
    return found
