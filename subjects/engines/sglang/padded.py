"""Which static inputs of the engine's runners have padding, and what it declares of that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        )
    },
    "attention.cuda_graph_swa_out_cache_loc": "out_cache_loc_swa",
}
"""Static inputs with a padded tail, and which of our own inputs holds what each of them does.

Embeddings are not among them: the model writes them, which is ours.
"""

OF_REQUESTS = frozenset(
    {"req_pool_indices", "seq_lens", "seq_lens_cpu", "mamba_track_indices", "mamba_track_mask"}
)
"""Those of requests, whatever a bucket counts."""

KEPT, RESET = "kept", "reset"

POLICIES = {
    "keep_pad": KEPT,
    "foreach_copy": KEPT,
    "fill_once": KEPT,
    "fill_sentinel": RESET,
    "zero": RESET,
}
"""What the engine's words for a padding policy come to."""


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
    """A static input, its last axis the batch's: of requests, or of what else a bucket counts.

    `holds` is the name of our own input that holds the same: its valid values are known.
    """

    buffer: Tensor
    holds: str
    of_requests: bool

    def tail(self, live: int, bucket: int, requests: int) -> Tensor:
        """Return the padding of a bucket of which so much is live, in so many requests."""
        if self.of_requests:
            return self.buffer[..., requests:]
        return self.buffer[..., live:bucket]


def padded_inputs(inputs: Mapping[str, Tensor], *, by_token: bool) -> dict[str, PaddedInput]:
    """Return the static inputs that have a padded tail, by name. Buckets may count tokens."""
    return {
        name: PaddedInput(buffer, HOLDS[name], by_token and HOLDS[name] in OF_REQUESTS)
        for name, buffer in inputs.items()
        if name in HOLDS
    }


def declared_padding(registry: Any) -> dict[str, DeclaredPadding]:
    """Return the padding policies of the engine's registry of buffers, None where it has none."""
    found = {}
    for name, slot in getattr(registry, "_slots", {}).items():
        word = str(slot.padding_policy.value)
        value = {"zero": 0, "fill_sentinel": slot.pad_value}.get(word)
        found[name] = DeclaredPadding(word, POLICIES.get(word), value)
    return found
