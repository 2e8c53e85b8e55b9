"""Dummy runs of idle ranks, and padded prefill tokens, that are treated as real."""

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.subjects.bugs.bug import Bug, pull
from paritybit.subjects.bugs.expected import DRAFT, PREFILL, VERIFY, seen
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.prefill import PrefillRunner
from paritybit.subjects.states import extend_paths
from paritybit.subjects.toggles import LocationScheme

FAMILY = "dummy rows that count as real"


class KeepsRowsOfDummies(GraphRunner):
    """A runner whose dummy run keeps some inputs of the last batch."""

    kept: tuple[str, ...]

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Update the static inputs. In a dummy run, keep some as they are."""
        buffers = [self.inputs.buffers[name] for name in self.kept] if batch is None else []
        before = [buffer.clone() for buffer in buffers]
        super().populate(batch, bucket, padded=padded)
        for buffer, held in zip(buffers, before, strict=True):
            buffer.copy_(held)


class KeepsSlots(KeepsRowsOfDummies):
    """A runner whose dummy run stores KV where the last batch did."""

    kept = ("out_cache_loc",)


class AdvancesPaddedTokens(PrefillRunner):
    """A runner that advances the last request's state by padded tokens."""

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Update the static inputs, and scan the padded tokens after the live ones."""
        super().populate(batch, bucket, padded=padded)
        beyond = 0 if batch is None else bucket - batch.live_tokens
        if batch is None or beyond == 0:
            return
        ids = self.view("input_ids", bucket)[batch.live_tokens :]
        last = torch.full_like(ids, batch.live_requests - 1)
        slots = self.inputs.buffers["mamba_track_indices"]
        paths = extend_paths(slots, last, torch.ones_like(ids), beyond)
        self.target.advance_states(self.ops, self.states.recurrent, paths, ids)


BUGS = (
    Bug(
        name="dummy_drafts_kv",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("vllm-project/vllm", 56734),
        mechanism=(
            "The draft steps of a dummy run find their slots through the tables of the last "
            "batch. They write draft KV into slots that other requests may own now."
        ),
        expected=seen("write_frame", DRAFT),
        parts={Part.RUNNER: KeepsSlots},
        modes=frozenset({Mode.DRAFT}),
    ),
    Bug(
        name="dummy_slots_unmasked",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread="https://github.com/vllm-project/vllm-ascend/issues/10245",
        mechanism=(
            "A dummy batch between real ones does not mask its KV writes. It writes through "
            "the slots that the last batch left in the buffer."
        ),
        expected=seen("write_frame", VERIFY),
        parts={Part.RUNNER: KeepsSlots},
        needs=("seq_lens_cpu",),
        modes=frozenset({Mode.TARGET_VERIFY}),
    ),
    Bug(
        name="padded_tokens_advance_states",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=pull("lightseekorg/tokenspeed", 969),
        mechanism=(
            "A prefill graph pads tokens up to its size. The recurrent layers treat the padded "
            "tokens as real, and advance the state of the last request."
        ),
        expected=seen("kv_parity", PREFILL),
        parts={Part.RUNNER: AdvancesPaddedTokens},
        modes=frozenset({Mode.EXTEND}),
    ),
)
