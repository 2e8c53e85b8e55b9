"""Observations made by hand: one right step of two requests in two sides, for a test to spoil.

Knows the shapes that an observation has, and plays nothing: there is no engine here, no
pair and no scheduler. Slot 0 differs between the runs and has changed, as it may in every
mode that writes.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from paritybit.harness.checks.step_properties.batch_invariance import Variant
from paritybit.harness.checks.step_properties.padding_noninterference import NoisyRun
from paritybit.harness.lockstep.observation import Observation, RunSnapshot
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import DraftState, ForwardBatch, Mode, RequestSpan, prepare
from paritybit.reference.config import (
    DRAFT_STEPS,
    DRAFT_TOKENS,
    PRESETS,
    Kind,
    Role,
    draft_config,
)
from paritybit.reference.model import Output
from paritybit.reference.pool import LOC_DTYPE, KVLayout, PoolSizes, Tables
from paritybit.subjects.protocol import (
    BufferFacts,
    ReplayFacts,
    ReplayResult,
)
from torch import Tensor

from properties.support.harness.right_step import (
    RUNNER,
    holders,
    right_end,
    right_keys,
    right_static,
)

CONFIG = PRESETS["gemma3"]
SIZES = PoolSizes(full_slots=24, swa_slots=24, page_size=1, rows=4)
LAYOUT = KVLayout({Role.TARGET: CONFIG, Role.DRAFT: draft_config(CONFIG)}, SIZES)
CPU = torch.device("cpu")

OWNERS = (
    Owner(7, 2, 3, 5, 1, (3, 9, 1, 12, 7), (2, 8, 5, 11, 6), token_row=0, known=6),
    Owner(4, 1, 2, 3, 1, (4, 10, 14), (1, 9, 13), token_row=1, known=4),
)
"""The requests, 7 before 4, with the slots of their tokens."""

NEW_FULL = (5, 6, 8, 11, 13, 15), (16, 17, 18, 19, 20, 21)
NEW_SWA = (3, 4, 7, 10, 12, 14), (15, 16, 17, 18, 19, 20)
"""The slots that the step may give each of them."""

FREE = 23
"""A slot that nobody owns, in either sub-pool."""

BUCKET = 4

COUNTS: Mapping[Mode, tuple[int, ...]] = {
    Mode.EXTEND: (3,),
    Mode.DECODE: (1, 1),
    Mode.TARGET_VERIFY: (DRAFT_TOKENS,) * 2,
    Mode.DRAFT: (DRAFT_STEPS,) * 2,
    Mode.FROZEN_DRAFT: (0, 0),
    Mode.DRAFT_EXTEND: (2, 1),
}
"""How many slots a forward of a mode writes for each request of its batch."""

OUTPUTS: Mapping[Mode, Mapping[str, str]] = {
    Mode.EXTEND: {"hidden": "token", "logits": "request"},
    Mode.DECODE: {"logits": "request", "hidden": "request"},
    Mode.TARGET_VERIFY: {"logits": "token", "hidden": "token"},
    Mode.DRAFT: {"scores": "request", "tokens": "request"},
    Mode.FROZEN_DRAFT: {"scores": "request", "tokens": "request"},
    Mode.DRAFT_EXTEND: {"logits": "request", "hidden": "token", "topk_index": "request"},
}
"""What a forward of a mode gives, and what it has a row for."""

WHOLE_NUMBERS = frozenset({"tokens", "topk_index"})
"""Outputs of int64; all others are float32."""

COLUMNS = 5

PAYLOAD = torch.full((BUCKET, CONFIG.hidden), 0.5)
"""What an extend adds to the embeddings of its tokens."""


def observation(mode: Mode = Mode.DECODE) -> Observation:
    """Return a right step of a mode, replayed with padding, and with every further run of it."""
    tables = Tables(SIZES, CONFIG.max_context, CPU)
    batch = batch_of(mode, tables)
    before, after = storages(batch)
    output = output_of(batch)
    static = {name: torch.cat([values, values[:1] + 1]) for name, values in output.items()}
    live = {name: values[: len(output[name])] for name, values in static.items()}
    eager, graph = (
        RunSnapshot(
            before=before.clone(),
            after=after.clone(),
            mapping=tables.full_to_swa_index_mapping.clone(),
            owners=holders(OWNERS, batch.spans),
            batch=batch,
            output=given,
        )
        for given in ({name: values.clone() for name, values in output.items()}, live)
    )
    if mode.written is not None:
        for _, _, arena in LAYOUT.arenas_of(graph.after):
            arena[:, :, 0] = 9.5
    if mode.advances_states:
        LAYOUT.states_of(graph.after)[0] = 9.5
    compared = torch.ones_like(before, dtype=torch.bool)
    for _, _, arena in LAYOUT.arenas_of(compared):
        arena[:, :, 0] = False
    LAYOUT.states_of(compared)[0] = False
    rows = len(next(iter(output.values())))
    live_size = batch.live_tokens if mode is Mode.EXTEND else batch.live_requests
    replay = ReplayResult(RUNNER[mode], BUCKET, live_size, True, static, rows, live, static)
    found = Observation(
        index=3,
        mode=mode,
        layout=LAYOUT,
        compared=compared,
        eager=eager,
        graph=graph,
        replay=replay,
        facts=facts(),
        expected_graph=True,
        end=right_end(OWNERS, SIZES, CONFIG),
        keys=right_keys(mode, batch.spans, graph.owners, CONFIG, idle=False),
        payload=PAYLOAD[: batch.live_tokens],
    )
    static_inputs = right_static(found, CONFIG)
    return replace(found, static=static_inputs, extra=extra_results(found, batch))


def idle(mode: Mode = Mode.DECODE) -> Observation:
    """Return a right idle replay of a mode: no batch, no live output, nothing written."""
    found = observation(mode)
    sides = (
        replace(side, before=found.eager.before.clone(), after=found.eager.before.clone())
        for side in (found.eager, found.graph)
    )
    eager, graph = (replace(side, batch=None, output=None) for side in sides)
    without = replace(
        found,
        eager=eager,
        graph=graph,
        keys=right_keys(mode, (), OWNERS, CONFIG, idle=True),
        payload=None,
        extra={},
    )
    return replace(without, static=right_static(without, CONFIG))


def batch_of(mode: Mode, tables: Tables) -> ForwardBatch:
    """Return the batch of a mode, its slots written to `tables`."""
    tokens = torch.arange(SIZES.rows * CONFIG.max_context).view(SIZES.rows, -1) % CONFIG.vocab
    hidden = torch.randn(*tokens.shape, CONFIG.hidden, generator=torch.Generator().manual_seed(5))
    spans = [span(mode, request, count) for request, count in enumerate(COUNTS[mode])]
    return prepare(mode, spans, tokens, hidden, tables)


def span(mode: Mode, request: int, count: int) -> RequestSpan:
    """Return the next `count` tokens of a request, with what the mode adds."""
    owner = OWNERS[request]
    state = DraftState(torch.ones(1), torch.arange(1), torch.ones(CONFIG.hidden))
    return RequestSpan(
        row=owner.row,
        token_row=request,
        begin=owner.length,
        end=owner.length + count,
        full_slots=NEW_FULL[request][:count],
        swa_slots=NEW_SWA[request][:count],
        track_index=owner.state_slot,
        verified=(1, 2, 3, 4) if mode is Mode.TARGET_VERIFY else (),
        state=state if mode.drafts else None,
    )


def storages(batch: ForwardBatch) -> tuple[Tensor, Tensor]:
    """Return all KV before a batch, with a NaN and a -0.0 in it, and after it."""
    before = torch.randn(LAYOUT.elements, generator=torch.Generator().manual_seed(1))
    for _, _, arena in LAYOUT.arenas_of(before):
        arena[:, 0, FREE, 0, 0], arena[:, 0, FREE, 0, 1] = float("nan"), -0.0
    after = before.clone()
    for role, kind, arena in LAYOUT.arenas_of(after):
        if role is batch.mode.written:
            slots = [
                slot
                for span in batch.spans
                for slot in (span.full_slots if kind is Kind.FULL else span.swa_slots)
            ]
            arena[:, :, slots] += 1.0
    if batch.mode.advances_states:
        nodes = slice(1, None) if batch.mode is Mode.TARGET_VERIFY else slice(1)
        for one in batch.spans:
            LAYOUT.states_of(after)[one.track_index, nodes] += 1.0
    return before, after


def output_of(batch: ForwardBatch) -> Output:
    """Return an output of the batch's mode: no two elements of a tensor are equal."""
    rows = {"request": batch.live_requests, "token": batch.live_tokens}
    return {
        name: torch.arange(rows[per] * COLUMNS)
        .view(-1, COLUMNS)
        .to(torch.int64 if name in WHOLE_NUMBERS else torch.float32)
        for name, per in OUTPUTS[batch.mode].items()
    }


def facts() -> ReplayFacts:
    """Return the facts of a replay that relied on what was captured."""
    buffers = {
        name: BufferFacts.of(buffer)
        for name, buffer in {
            "seq_lens": torch.zeros(BUCKET, dtype=torch.int32),
            "out_cache_loc_swa": torch.zeros(BUCKET, dtype=LOC_DTYPE[Kind.SWA]),
        }.items()
    }
    return ReplayFacts(
        captured_buffers=buffers,
        buffers=dict(buffers),
        translations=1,
        expected_translations=1,
        holds_attention=True,
        expects_attention=True,
    )


def extra_results(found: Observation, batch: ForwardBatch) -> dict[str, object]:
    """Return what further runs of a right step give, by the property that asks for them."""
    replay, output = found.replay, found.eager.output
    assert replay is not None and output is not None
    owned = torch.zeros_like(found.compared)
    for _, kind, arena in LAYOUT.arenas_of(owned):
        for owner in OWNERS:
            arena[:, :, owner.slots(kind)] = True
        for one in batch.spans:
            arena[:, :, list(one.full_slots if kind is Kind.FULL else one.swa_slots)] = True
    LAYOUT.states_of(owned)[[owner.state_slot for owner in OWNERS]] = True
    noise = torch.full_like(found.graph.after, 77.0)
    defined = {name: values.clone() for name, values in replay.defined.items()}
    return {
        "hermetic_replay": defined,
        "padding_noninterference": NoisyRun(
            {name: values.clone() for name, values in output.items()},
            {name: values.clone() for name, values in defined.items()},
            torch.where(owned, found.graph.after, noise),
            owned,
        ),
        "determinism": (
            {name: values.clone() for name, values in output.items()},
            found.eager.after.clone(),
        ),
        "batch_invariance": variants(batch, output),
    }


def variants(batch: ForwardBatch, output: Output) -> tuple[Variant, ...]:
    """Return what a right step gives under other batchings."""
    everyone = tuple(range(batch.live_requests))
    orders = {
        "in reverse": everyone[::-1],
        "alone": everyone[-1:],
        "in its runner's largest bucket": everyone,
    }
    return tuple(
        Variant(description, order, reordered(batch, output, order))
        for description, order in orders.items()
    )


def reordered(batch: ForwardBatch, output: Output, order: tuple[int, ...]) -> Output:
    """Return copies of the rows of some requests, request after request."""
    found = {}
    for name, values in output.items():
        owners = batch.requests_of_rows(len(values))
        rows = [row for request in order for row, owner in enumerate(owners) if owner == request]
        found[name] = values[rows].clone()
    return found


def arena_of(side: RunSnapshot, role: Role, kind: Kind) -> Tensor:
    """Return a sub-pool of one run after the step, [layers, 2, slots, kv_heads, head_dim]."""
    arenas = {(model, which): arena for model, which, arena in LAYOUT.arenas_of(side.after)}
    return arenas[role, kind]
