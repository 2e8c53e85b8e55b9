"""Padding that changes the arithmetic: empty rows, skipped rows, values of masked keys."""

from dataclasses import replace

import torch
from paritybit.reference.allocator import Allocator
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Heads
from paritybit.reference.ops import ListedKeys, Ops, Reused
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.bugs.expected import DECODE, PREFILL, VERIFY, seen
from paritybit.subjects.contracts import Policy
from paritybit.subjects.engine import Engine
from paritybit.subjects.parts import Part
from paritybit.subjects.protocol import Forward, Overrides
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN
from paritybit.subjects.runners.prefill import PrefillRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

FAMILY = "padding changes the maths"


class LoadsMaskedValues(Ops):
    """Ops whose attention gives a masked key the weight zero, but still loads its value."""

    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None, reused: Reused
    ) -> Tensor:
        mixed = super()._attention(query, cache, keys, sinks, reused)
        place = keys.begin[:, None] + torch.arange(keys.max_keys, device=query.device)
        listed = place < keys.end[:, None]
        values = cache[1][keys.slots[place.clamp(0, keys.slots.shape[0] - 1)]]
        masked = torch.where(listed[:, :, None, None], 0.0, values) * 0.0
        grouped = mixed.view(len(mixed), cache.shape[2], -1, mixed.shape[2])
        return (grouped + masked.sum(1)[:, :, None]).view(mixed.shape)


class StoresPaddedKeys(PrefillRunner):
    """A runner whose store takes its number of tokens from the padded keys."""

    def attend(self, layer: int, heads: Heads, mixed: Tensor) -> None:
        """Store all keys, then attend for the live tokens."""
        if self.access is not None:
            slots = self.inputs.buffers["out_cache_loc"][: heads.key.shape[0]]
            self.pool.set_kv_buffer(layer, slots, heads.key, heads.value)
        super().attend(layer, heads, mixed)


class CountsStatesFromZero(Allocator):
    """An allocator that hands out state slots from 0, to which padding writes."""

    def clear(self, seed: int) -> None:
        """Free everything, including the reserved state slot."""
        super().clear(seed)
        self.free_states = [slot - 1 for slot in self.free_states]


class ChoosesByShape(Engine):
    """An engine that treats one token per request as a decode."""

    def forward(
        self,
        batch: ForwardBatch | None,
        idle: Mode = Mode.DECODE,
        overrides: Overrides = NOTHING_OVERRIDDEN,
    ) -> Forward:
        """Run one forward by the graph of its shape."""
        decodes = batch is not None and all(span.end - span.begin == 1 for span in batch.spans)
        if batch is not None and batch.mode is Mode.EXTEND and decodes:
            batch = replace(batch, mode=Mode.DECODE)
        return super().forward(batch, idle, overrides)


BUGS = (
    Bug(
        name="masked_values_loaded",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm", 57158),
        mechanism=(
            "Attention loads the values of masked keys, from the null slot or from "
            "whatever follows in the list, and multiplies them by zero. If such a value "
            "is NaN, it reaches live rows."
        ),
        expected=seen("padding_noninterference", VERIFY),
        parts={Part.OPS: LoadsMaskedValues},
        modes=frozenset({Mode.TARGET_VERIFY}),
    ),
    Bug(
        name="store_counts_padded_keys",
        family=FAMILY,
        scheme=LocationScheme.PER_LAYER,
        thread=pull("vllm-project/vllm", 13922),
        mechanism=(
            "The store takes its token count from the padded keys and not from the "
            "batch's slots. It continues into slots that an earlier, longer batch left "
            "behind them."
        ),
        expected=seen("kv_parity", PREFILL),
        rows={"out_cache_loc": {"policy": Policy.KEEP}},
        parts={Part.RUNNER: StoresPaddedKeys},
        modes=frozenset({Mode.EXTEND}),
    ),
    Bug(
        name="padding_clamped_to_a_slot",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("lightseekorg/tokenspeed", 700),
        mechanism=(
            "The marker of a padded row is clamped into the range of valid slots. The "
            "lowest valid slot can belong to a request, and all padding is stored there."
        ),
        expected=seen("write_frame", DECODE),
        rows={"out_cache_loc": {"value": 1}},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
    Bug(
        name="state_slot_zero_issued",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("sgl-project/sglang", 17404),
        mechanism=(
            "The allocator hands out recurrent-state slots from 0, but captures and "
            "padded rows write to slot 0. A request that is served first hides the bug."
        ),
        expected=seen("slot_ownership", DECODE),
        parts={Part.ALLOCATOR: CountsStatesFromZero},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
    Bug(
        name="prompt_taken_for_decode",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread="https://github.com/vllm-project/vllm/issues/57720",
        mechanism=(
            "A prompt with one token has the shape of a decode and is run as one. It "
            "continues the recurrent state that the previous owner of its slot left."
        ),
        expected=seen("logits_parity", DECODE),
        parts={Part.ENGINE: ChoosesByShape},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.DECODE}),
    ),
)
