"""The data that the harness and the engine under test exchange."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from paritybit.reference.model import Output
from torch import Tensor


@dataclass(frozen=True)
class BufferFacts:
    """What a graph has recorded about a static buffer."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    address: int

    @classmethod
    def of(cls, buffer: Tensor) -> "BufferFacts":
        """Return the current facts of `buffer`."""
        return cls(buffer.shape, buffer.dtype, buffer.device, buffer.data_ptr())


@dataclass(frozen=True)
class Keys:
    """The keys of R rows on layers of one kind: slots[begin[r]:end[r]] of a slot list.

    `begin` and `end` are [R].
    """

    begin: Tensor
    end: Tensor
    slots: Tensor


@dataclass(frozen=True)
class KeyLists:
    """The keys of a forward on full layers (full slots) and on SWA layers (SWA slots).

    The rows are those that attend, padded rows after live ones. A draft has the rows of each
    forward one after another.
    """

    full: Keys
    swa: Keys


@dataclass(frozen=True)
class ReplayResult:
    """One replay: its bucket, how much of it was live, and its output.

    - `live_size`: live requests or tokens, in the bucket's unit.
    - `output`: the static output of the whole bucket. `live_rows` of its rows are live.
    - `live_output`: the forward's output for the live rows.
    - `defined`: the part of `output` that depends only on the batch.
    - `keys`: the lists by which it read KV. None if it read none.
    """

    runner: str
    bucket: int
    live_size: int
    padded: bool
    output: Output
    live_rows: int
    live_output: Output
    defined: Output
    keys: KeyLists | None = None


@dataclass(frozen=True)
class ForwardResult:
    """The outcome of one forward: its output for live rows, and its replay, if any.

    `keys` are those of `ReplayResult`, valid until the engine's next forward.
    """

    output: Output
    replay: ReplayResult | None
    keys: KeyLists | None = None


@dataclass(frozen=True)
class ReplayFacts:
    """What a replay relied on: buffers at its capture and now, and what its graph contains.

    `translations` are those from full to SWA slots.
    """

    captured_buffers: Mapping[str, BufferFacts]
    buffers: Mapping[str, BufferFacts]
    translations: int
    expected_translations: int
    holds_attention: bool
    expects_attention: bool


@dataclass(frozen=True)
class Overrides:
    """Changes to one forward. `explain` makes them to find a cause, and extra runs make them too.

    - `elements`: (static buffer, flat index, value), written before the launch. Inputs are written
      before the metadata is planned from them, and metadata after it.
    - `captured`: if False, the captured function runs eagerly over the same static buffers.
    - `largest`: replay the runner's largest bucket.
    """

    elements: tuple[tuple[str, int, Tensor], ...] = ()
    captured: bool = True
    largest: bool = False
