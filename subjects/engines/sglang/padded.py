"""Which static inputs of the engine's runners have padding, and what it declares of that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind
from paritybit.subjects.engines.shared.loading import attribute
from paritybit.subjects.engines.shared.padded import (
    KEPT,
    RESET,
    DeclaredPadding,
    PaddedInput,
    PaddedTokens,
)
from torch import Tensor

HOLDS: Mapping[str, str] = {
    **{
        name: name
        for name in (
            "input_ids",
            "positions",
            "mrope_positions",
            "out_cache_loc",
            "out_cache_loc_swa",
            "req_pool_indices",
            "seq_lens",
            "seq_lens_cpu",
            "mamba_track_indices",
            "mamba_track_mask",
            "topk_p",
            "topk_index",
            "hidden_states",
            "extend_seq_lens",
            "num_correct_drafts",
            "num_accept_tokens",
        )
    },
    "num_accepted_drafts": "num_correct_drafts",
    "num_accepted_tokens": "num_accept_tokens",
    "bonus_tokens": "input_ids",
    "attention.cuda_graph_swa_out_cache_loc": "out_cache_loc_swa",
}
"""Static inputs with a padded tail, and which of our own inputs holds what each of them does.

Embeddings are not among them: the model writes them, which is ours.
"""

LOCATIONS = {"out_cache_loc": Kind.FULL, "out_cache_loc_swa": Kind.SWA}
"""Our own inputs that name slots, and of which sub-pool."""

OF_TOKENS = frozenset(
    {"input_ids", "positions", "mrope_positions", "out_cache_loc", "out_cache_loc_swa"}
)
"""What a batch has for each token; of all else one for each request."""

MASK = "attention.cuda_graph_custom_mask"
"""The static mask of draft trees."""

POLICIES = {
    "keep_pad": KEPT,
    "foreach_copy": KEPT,
    "fill_once": KEPT,
    "fill_sentinel": RESET,
    "zero": RESET,
}
"""What the engine's words for a padding policy come to."""


@dataclass(frozen=True)
class PaddedPrefill(PaddedTokens):
    """A static input of a runner whose buckets count tokens."""

    def tail(self, batch: ForwardBatch, bucket: int) -> Tensor:
        """Return the padding of a batch that is replayed in a bucket of so many tokens."""
        if self.holds in OF_TOKENS:
            return super().tail(batch, bucket)
        return self.buffer[..., batch.live_requests :]


@dataclass(frozen=True)
class PaddedMask(PaddedInput):
    """A mask of `each` draft tokens of a request over its keys and themselves, flat."""

    def tail(self, batch: ForwardBatch, bucket: int) -> Tensor:
        """Return the bits of padded requests, which have one key each."""
        begin = sum(self.each * (span.begin + self.each) for span in batch.spans)
        padded = bucket - batch.live_requests
        return self.buffer[begin : begin + padded * self.each * (1 + self.each)]


@dataclass(frozen=True)
class PaddedRows(PaddedInput):
    """A static input with `each` rows for a request on its first axis; sections have a last one."""

    def tail(self, batch: ForwardBatch, bucket: int) -> Tensor:
        """Return the rows of padded requests."""
        axis = -1 if self.holds == "mrope_positions" else 0
        padded = (bucket - batch.live_requests) * self.each
        return self.buffer.narrow(axis, batch.live_requests * self.each, padded)


def padded_inputs(
    statics: Mapping[str, Tensor], mode: Mode, tokens_per_request: int
) -> dict[str, PaddedInput]:
    """Return the static inputs that have a padded tail, by name: those of no draft model."""
    kind = PaddedPrefill if mode is Mode.EXTEND else PaddedInput
    found: dict[str, PaddedInput] = {
        name: kind(buffer, HOLDS[name], tokens_per_request if HOLDS[name] in OF_TOKENS else 1)
        for name, buffer in statics.items()
        if name in HOLDS
    }
    if MASK in statics and mode is Mode.TARGET_VERIFY:
        found[MASK] = PaddedMask(statics[MASK], "custom_mask", tokens_per_request)
    return found


def padded_rows(statics: Mapping[str, Tensor], requests: int) -> dict[str, PaddedInput]:
    """Return the same of a draft model's runner, whose static inputs are for so many requests."""
    found: dict[str, PaddedInput] = {}
    for name, buffer in statics.items():
        if name in HOLDS:
            axis = -1 if HOLDS[name] == "mrope_positions" else 0
            found[name] = PaddedRows(buffer, HOLDS[name], buffer.shape[axis] // requests)
    return found


def registry_of(runner: Any) -> Any:
    """Return one of the engine's runners' registry of buffers, None where it has none.

    It is known by its name in the runner or, where that has another, by its type.
    """
    named = getattr(runner, "buffer_registry", None)
    held = (one for one in vars(runner).values() if type(one).__name__ == "CudaGraphBufferRegistry")
    return next(held, None) if named is None else named


def declared_padding(runner: Any) -> dict[str, DeclaredPadding]:
    """Return the padding policies of a runner's registry of buffers, if it has one."""
    found, registry = dict[str, DeclaredPadding](), registry_of(runner)
    if registry is None:
        return found
    for name, slot in attribute(registry, "_slots").items():
        word = str(slot.padding_policy.value)
        value = {"zero": 0, "fill_sentinel": slot.pad_value}.get(word)
        found[name] = DeclaredPadding(word, POLICIES.get(word), value)
    return found
