"""Every fact that tests expect of a runner: one row per runner, and the pieces rows share.

Written a second time on purpose, from the engine's runners and by hand, not from the
contracts and attributes of ours: a slip there shows as a difference from here. Never derive
a row from the runner that it is held against.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from paritybit.reference.batch import ENCODER_ROWS, Mode
from paritybit.reference.config import SPECULATION, Kind
from paritybit.subjects.contracts import HIDDEN, Axis
from paritybit.subjects.toggles import LocationScheme

from properties.support.subjects.flips import (
    CONTEXT,
    VOCAB,
    Flip,
    Flips,
    begin_anew,
    beside,
    bump,
    follow_another,
    from_it_on,
    list_a_free_slot,
    move_boundary,
    mrope,
    named,
    negate,
    nudge,
    scale,
    see_one_key_less,
    shorten,
    stateful,
    stop_at,
    the_last,
    the_last_if_long,
    write_elsewhere,
)
from properties.support.subjects.graph_world import GraphWorld
from properties.support.subjects.ready_forward import REQUESTS, ReadyForward
from properties.support.subjects.static_inputs import ExpectedInput

T, B, M = Axis.TOKEN, Axis.REQUEST, Axis.MROPE
I64, I32, F32, BOOL = torch.int64, torch.int32, torch.float32, torch.bool
MODEL = None
"""The dtype of what has the model's."""

K, TOPK, STEPS, MASK_BITS = 4, 2, 3, 4 * 48
"""Draft tokens of a verify, and of a draft-extend; branches and steps of a draft; mask bits."""

STATE_SLOTS = 17
"""State slots of the tests' worlds: one for each request row, and the reserved one."""

PER_LAYER, PRESET, MEMO = LocationScheme

Times = int | Literal["each layer"]
"""How often a graph runs an op: on each layer that needs it, or a number of times in all."""

Conversion = tuple[str, torch.dtype, torch.dtype]

Paths = Mapping[tuple[str, str], int]
"""How many forwards, by mode and path."""


@dataclass(frozen=True)
class ExpectedRunner:
    """What is expected of one runner.

    `inputs` are its static inputs, and what is right in the padded part of each.
    `per_bucket` says how long each axis is for each unit of a bucket; `fixed` for any bucket.
    `translations`, `stores` and `attends` say how often a graph translates full slots to SWA
    slots, stores K and V, and attends. `outputs` are its outputs, and the row of each that is
    request 1's second, or only, one in the schedule of the tests that plant faults.
    `flips` say whose output a change of a static buffer moves; `inert` why no one's.
    `conversions` happen on copy in a replay: (buffer, from, to).
    `capture_warnings` says how many of two captures warn where nothing clears the memo before
    their own window: a capture has no entry, and finds what the bucket before it has left, and
    the first one what the runner before it has in a pool they share. A capture that stores
    nothing leaves nothing; one whose attention comes later translates nothing.
    `warns_without` says where steps warn once a bug is switched on in this runner alone.
    """

    mode: Mode
    inputs: Mapping[str, ExpectedInput]
    per_bucket: Mapping[Axis, int]
    translations: Mapping[LocationScheme, Times]
    stores: Times
    attends: Times
    outputs: Mapping[str, int]
    flips: Flips
    conversions: frozenset[Conversion]
    capture_warnings: int
    warns_without: Mapping[str, Paths] = field(default_factory=dict)
    inert: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[Axis, int] = field(default_factory=dict)
    captures: bool = True
    attention_captured: bool = True
    shares_buffers: bool = True
    host_follows_requests: bool = False

    def inputs_under(self, scheme: LocationScheme) -> dict[str, ExpectedInput]:
        """Return the static inputs that exist under a location scheme."""
        return {name: row for name, row in self.inputs.items() if row.scheme in {None, scheme}}

    def extents(self, bucket: int) -> dict[Axis, int]:
        """Return how long each axis is for a bucket."""
        return {axis: bucket * count for axis, count in self.per_bucket.items()} | {**self.fixed}

    def spoiled_by_a_memo(self) -> bool:
        """Whether a capture that hits the memo of its warm-up holds no translation at all.

        Of those that translate once: a draft misses the memo with each slice of its slots.
        """
        return self.captures and self.translations[MEMO] == 1

    def planned(
        self, name: str, world: GraphWorld, *, requests: int = REQUESTS, filled: bool = False
    ) -> ReadyForward:
        """Return a forward that the runner of this row is about to run in a world."""
        inputs = self.inputs_under(world.trial.scheme)
        return ReadyForward(world, name, inputs, requests=requests, filled=filled)


# Static inputs.

SEQ_LENS = ExpectedInput(B, I32, 1, 1)
SEQ_LENS_CPU = ExpectedInput(B, I32, 1, 1, host=True)
SWA_LOC_INPUT = ExpectedInput(T, I32, 0, scheme=PRESET)

DECODE_INPUTS = {
    "input_ids": ExpectedInput(T, I64),
    "positions": ExpectedInput(T, I64, 0),
    "req_pool_indices": ExpectedInput(B, I64, 0),
    "seq_lens": SEQ_LENS,
    "seq_lens_cpu": SEQ_LENS_CPU,
    "out_cache_loc": ExpectedInput(T, I64, 0),
    "out_cache_loc_swa": SWA_LOC_INPUT,
    "mrope_positions": ExpectedInput(M, I64),
    "mamba_track_indices": ExpectedInput(B, I64, 0),
    "mamba_track_mask": ExpectedInput(B, BOOL, 0),
    "encoder_lens": ExpectedInput(B, I32),
    "lora_ids": ExpectedInput(B, I64, 0),
    "num_token_non_padded": ExpectedInput(Axis.SCALAR, I32),
    "global_num_tokens": ExpectedInput(Axis.SCALAR, I32),
}

PREFILL_INPUTS = {
    "out_cache_loc": ExpectedInput(T, I64, 0),
    "out_cache_loc_swa": SWA_LOC_INPUT,
    "input_ids": ExpectedInput(T, I64, 0),
    "positions": ExpectedInput(T, I64, 0),
    "mrope_positions": ExpectedInput(M, I64, 0),
    "input_embeds": ExpectedInput(T, F32, 0, width=HIDDEN),
    "mamba_track_indices": ExpectedInput(B, I64),
    "mamba_track_mask": ExpectedInput(B, BOOL),
}

# Whose output moves.

IDS = Flip("input_ids", bump("input_ids", VOCAB))
POSITIONS = Flip("positions", bump("positions", CONTEXT))
LOC = Flip("out_cache_loc", write_elsewhere("out_cache_loc", Kind.FULL))
SWA_LOC = Flip("out_cache_loc_swa", write_elsewhere("out_cache_loc_swa", Kind.SWA))
POOL_ROWS = Flip("req_pool_indices", follow_another, early=True)
LENGTHS = Flip("seq_lens", see_one_key_less, early=True)
HIDDEN_STATES = Flip("hidden_states", scale("hidden_states"))
TRACK = named(
    Flip("mamba_track_indices", bump("mamba_track_indices", STATE_SLOTS), stateful),
    Flip("mamba_track_mask", negate("mamba_track_mask")),
)
DRAFT_STATE = named(
    Flip("topk_p", scale("topk_p")), Flip("topk_index", bump("topk_index", VOCAB)), HIDDEN_STATES
)
ROW_LISTS = named(
    Flip("kv_indptr", move_boundary("kv_indptr"), beside),
    Flip("kv_indices", list_a_free_slot("kv_indptr", "kv_indices", Kind.FULL)),
    Flip("window_kv_indptr", move_boundary("window_kv_indptr"), beside),
    Flip("window_kv_indices", list_a_free_slot("window_kv_indptr", "window_kv_indices", Kind.SWA)),
)
BOUNDS = named(
    *(Flip(name, nudge(name, 1)) for name in ("key_begin", "window_key_begin")),
    *(Flip(name, nudge(name, -1)) for name in ("key_end", "window_key_end")),
    Flip("kv_indices", list_a_free_slot("key_begin", "kv_indices", Kind.FULL)),
)
NO_ADAPTERS = {"lora_ids": "the model of these tests has no adapters"}
DECODE_FLIPS: Flips = {
    **named(IDS, POSITIONS, POOL_ROWS, LOC, SWA_LOC),
    **mrope(),
    **TRACK,
    **named(
        Flip("encoder_lens", bump("encoder_lens", ENCODER_ROWS)),
        Flip("num_token_non_padded", stop_at("num_token_non_padded"), from_it_on),
        Flip("global_num_tokens", stop_at("global_num_tokens"), from_it_on),
    ),
}
PREFILL_FLIPS: Flips = {
    **named(IDS, POSITIONS, LOC, SWA_LOC, Flip("input_embeds", scale("input_embeds"))),
    **mrope(),
    **{name: replace(flip, early=True) for name, flip in TRACK.items()},
}
COMPILED_FLIPS: Flips = {**named(IDS, POSITIONS, LOC, POOL_ROWS, LENGTHS), **mrope()}


def length_on_the_host(by: int) -> Flip:
    """Return the flip of the host's lengths, `by` more keys than the padded request has."""
    return Flip("seq_lens_cpu", shorten("seq_lens_cpu", by), the_last, early=True)


# Conversions on copy.

LENGTHS_CONVERTED: frozenset[Conversion] = frozenset(
    {("seq_lens", I64, I32), ("seq_lens_cpu", I64, I32)}
)
ENCODER_LENS_CONVERTED: frozenset[Conversion] = frozenset({("encoder_lens", I64, I32)})
FULL_LIST_CONVERTED: frozenset[Conversion] = frozenset({("kv_indices", I32, I64)})
LISTS_CONVERTED: frozenset[Conversion] = FULL_LIST_CONVERTED | {("window_kv_indices", I32, I64)}

# Where a runner warns. Without after_window: wherever Python translates the write location
# after the window's, so not inside a full graph. Without entry and before_window: in an idle
# step that follows a forward, or a capture, that left a key, with no allocation in between.

NO_AFTER = "loc_memo_warning.after_window"
NO_ENTRY_NOR_BEFORE = "loc_memo_warning.entry+before_window"
EVERY_PREFILL: Paths = {("extend", "replay"): 4, ("extend", "eager"): 1}

# A runner that has a static SWA location takes the fast path where one is preset.
FAST_IF_PRESET: Mapping[LocationScheme, Times] = {PER_LAYER: "each layer", PRESET: 0, MEMO: 1}
STORES_NOTHING: Mapping[LocationScheme, Times] = dict.fromkeys(LocationScheme, 0)

DECODE = ExpectedRunner(
    mode=Mode.DECODE,
    inputs=DECODE_INPUTS,
    per_bucket={T: 1, B: 1},
    translations=FAST_IF_PRESET,
    stores="each layer",
    attends="each layer",
    outputs={"logits": 2, "hidden": 2},
    flips={**DECODE_FLIPS, **ROW_LISTS, **named(LENGTHS, length_on_the_host(2))},
    inert=NO_ADAPTERS,
    conversions=LENGTHS_CONVERTED | LISTS_CONVERTED | ENCODER_LENS_CONVERTED,
    capture_warnings=1,
    warns_without={NO_ENTRY_NOR_BEFORE: {("decode", "replay"): 1}},
)

PIECEWISE = ExpectedRunner(
    mode=Mode.EXTEND,
    inputs=PREFILL_INPUTS,
    per_bucket={T: 1},
    fixed={B: 8},
    translations=STORES_NOTHING,  # A prefill stores between its graphs.
    stores=0,
    attends=0,
    outputs={"hidden": 1, "logits": 0},
    flips=PREFILL_FLIPS,
    conversions=frozenset(),
    capture_warnings=0,
    warns_without={NO_AFTER: EVERY_PREFILL},
    attention_captured=False,
)

EXPECTED: Mapping[str, ExpectedRunner] = {
    "decode": DECODE,
    "target_verify": replace(
        DECODE,
        mode=Mode.TARGET_VERIFY,
        inputs={**DECODE_INPUTS, "custom_mask": ExpectedInput(Axis.MASK, BOOL)},
        per_bucket={T: K, B: 1, Axis.MASK: MASK_BITS},
        outputs={"logits": 9, "hidden": 9},
        flips={
            **DECODE_FLIPS,
            **BOUNDS,
            **named(
                # The masks of the requests behind lie one row of bits further on.
                replace(LENGTHS, moved=from_it_on),
                length_on_the_host(6),
                Flip("custom_mask", negate("custom_mask")),
                Flip(
                    "swa_page_table",
                    list_a_free_slot("window_key_begin", "swa_page_table", Kind.SWA),
                ),
                Flip("mask_indptr", nudge("mask_indptr", 1)),
                Flip("window_kv_offsets", bump("window_kv_offsets", 64)),
                Flip("tree_parents", begin_anew, stateful),
            ),
        },
        conversions=LENGTHS_CONVERTED | FULL_LIST_CONVERTED | ENCODER_LENS_CONVERTED,
        capture_warnings=2,
        warns_without={NO_ENTRY_NOR_BEFORE: {("target_verify", "replay"): 1}},
    ),
    "cpu_graph": ExpectedRunner(
        mode=Mode.DECODE,
        inputs={
            "seq_lens": ExpectedInput(B, I64, 1, 1),
            "out_cache_loc": ExpectedInput(T, I64, 0),
            "req_pool_indices": ExpectedInput(B, I64, 0),
            "input_ids": ExpectedInput(T, I64),
            "positions": ExpectedInput(T, I64),
            "mrope_positions": ExpectedInput(M, I64),
        },
        per_bucket={T: 1, B: 1},
        # It has no static SWA location, and drops what an eager prefill has preset.
        translations={PER_LAYER: "each layer", PRESET: "each layer", MEMO: 1},
        stores="each layer",
        attends="each layer",
        outputs={"logits": 2, "hidden": 2},
        flips={name: replace(flip, early=True) for name, flip in COMPILED_FLIPS.items()},
        conversions=frozenset(),
        capture_warnings=1,
        warns_without={
            NO_AFTER: {("decode", "replay"): 12},
            NO_ENTRY_NOR_BEFORE: {("decode", "replay"): 6},
        },
        captures=False,
        shares_buffers=False,
    ),
    "eagle_draft": ExpectedRunner(
        mode=Mode.DRAFT,
        inputs={
            "seq_lens": SEQ_LENS,
            "seq_lens_cpu": SEQ_LENS_CPU,
            "out_cache_loc": ExpectedInput(Axis.DRAFT_SLOT, I64, 0),
            "positions": ExpectedInput(T, I64, 0),
            "topk_p": ExpectedInput(B, F32, 0, width=TOPK),
            "topk_index": ExpectedInput(B, I64, 0, width=TOPK),
            "hidden_states": ExpectedInput(B, MODEL, 0, width=HIDDEN),
            "req_pool_indices": ExpectedInput(B, I64, 0),
            "input_ids": ExpectedInput(T, I64, populated=False),
            "mrope_positions": ExpectedInput(M, I64, populated=False),
            "extend_seq_lens": ExpectedInput(B, I32, populated=False),
        },
        per_bucket={T: TOPK, B: 1, Axis.DRAFT_SLOT: TOPK * STEPS},
        # Two forwards of a model with one SWA layer and one full layer.
        translations=dict.fromkeys(LocationScheme, 2),
        stores=4,
        attends=4,
        outputs={"scores": 0, "tokens": 0, "chosen": 0},
        flips={
            **named(POSITIONS, LOC, POOL_ROWS, LENGTHS, length_on_the_host(2)),
            **DRAFT_STATE,
            **ROW_LISTS,
        },
        inert={
            "input_ids": "never populated: the draft reads the tokens of topk_index",
            "mrope_positions": "never populated: all sections are the positions",
            "extend_seq_lens": "never populated: each branch runs one token",
        },
        conversions=LENGTHS_CONVERTED | LISTS_CONVERTED,
        capture_warnings=1,
        warns_without={NO_ENTRY_NOR_BEFORE: {("draft", "replay"): 2}},
    ),
    "eagle_draft_extend": ExpectedRunner(
        mode=Mode.DRAFT_EXTEND,
        inputs={
            "seq_lens": SEQ_LENS,
            "out_cache_loc": ExpectedInput(T, I64, 0, new=1),
            "positions": ExpectedInput(T, I64, 0),
            "req_pool_indices": ExpectedInput(B, I64, 0),
            "num_correct_drafts": ExpectedInput(B, I32, K, K),
            "num_accept_tokens": ExpectedInput(B, I32, K, K),
            "extend_seq_lens": ExpectedInput(B, I32, K, K),
            "input_ids": ExpectedInput(T, I64),
            "hidden_states": ExpectedInput(T, MODEL, width=HIDDEN),
            "seq_lens_cpu": SEQ_LENS_CPU,
            "extend_seq_lens_cpu": ExpectedInput(B, I32, K, K, host=True),
        },
        per_bucket={T: K, B: 1},
        translations=dict.fromkeys(LocationScheme, 1),
        stores=2,
        attends=2,
        outputs={"logits": 1, "hidden": 1, "topk_p": 1, "topk_index": 1},
        flips={
            **BOUNDS,
            **named(IDS, POSITIONS, LOC, POOL_ROWS, LENGTHS, HIDDEN_STATES, length_on_the_host(2)),
            **named(
                Flip(
                    "extend_seq_lens_cpu",
                    shorten("extend_seq_lens_cpu", 2),
                    the_last_if_long,
                    early=True,
                ),
                Flip("num_correct_drafts", bump("num_correct_drafts", SPECULATION.extend_tokens)),
                Flip("num_accept_tokens", bump("num_accept_tokens", 8), from_it_on, early=True),
                Flip("extend_seq_lens", bump("extend_seq_lens", 8), from_it_on),
                Flip(
                    "window_kv_indices",
                    list_a_free_slot("window_key_begin", "window_kv_indices", Kind.SWA),
                ),
            ),
        },
        conversions=LENGTHS_CONVERTED | LISTS_CONVERTED,
        capture_warnings=2,
        warns_without={
            NO_AFTER: {("draft_extend", "eager"): 2},
            NO_ENTRY_NOR_BEFORE: {("draft_extend", "replay"): 1},
        },
        host_follows_requests=True,
    ),
    "frozen_kv_mtp": ExpectedRunner(
        mode=Mode.FROZEN_DRAFT,
        inputs={
            "seq_lens": ExpectedInput(T, I32, 1, 1),
            "seq_lens_cpu": ExpectedInput(T, I32, 1, 1, host=True),
            "positions": ExpectedInput(T, I64, 0),
            "req_pool_indices": ExpectedInput(T, I64, 0),
            "topk_p": ExpectedInput(B, F32, width=TOPK),
            "topk_index": ExpectedInput(B, I64, width=TOPK),
            "hidden_states": ExpectedInput(B, MODEL, width=HIDDEN),
            "mrope_positions": ExpectedInput(M, I64),
        },
        per_bucket={T: TOPK, B: 1},
        translations=STORES_NOTHING,
        stores=0,
        attends=4,
        outputs={"scores": 0, "tokens": 0, "chosen": 0},
        flips={
            **named(POSITIONS, POOL_ROWS, LENGTHS, length_on_the_host(3)),
            **mrope(),
            **DRAFT_STATE,
            **ROW_LISTS,
        },
        conversions=LENGTHS_CONVERTED | LISTS_CONVERTED,
        capture_warnings=1,
        warns_without={NO_ENTRY_NOR_BEFORE: {("frozen_draft", "replay"): 2}},
    ),
    "piecewise": PIECEWISE,
    "breakable": replace(PIECEWISE, shares_buffers=False),
}
"""The row of every runner, by its name."""
