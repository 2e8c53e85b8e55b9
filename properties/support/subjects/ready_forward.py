"""Live requests about to be run by one runner, again and again, with buffers changed under it.

Knows how a batch of each mode comes about. Does not know what a runner makes of it: what is
expected stands in the table of `runners`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Extend,
    Step,
    Verify,
)
from paritybit.reference.batch import ForwardBatch, Mode, Span
from paritybit.reference.config import SPECULATION, Kind, Role
from paritybit.reference.eager import path_lists, paths_of
from paritybit.reference.transfer import transfer
from paritybit.subjects.contracts import Axis
from paritybit.subjects.protocol import Forward
from torch import Tensor

from properties.support.subjects.graph_world import GraphWorld
from properties.support.subjects.static_inputs import ExpectedInput

REQUESTS = 3
"""Requests of a batch that pads its bucket, the largest of its world."""


@dataclass(frozen=True)
class Launched:
    """What one replay left: live outputs on the host, and the slots of each model it wrote."""

    output: Mapping[str, Tensor]
    written: Mapping[tuple[Role, Kind], set[int]]
    requests: list[int]

    def moved(self, other: "Launched") -> set[int]:
        """Return the live requests of whose output some row has other bits."""
        found: set[int] = set()
        for name, mine in self.output.items():
            theirs = other.output[name]
            places = (bits(mine) != bits(theirs)).flatten(1).any(-1).nonzero().flatten().tolist()
            by_token = mine.shape[0] == len(self.requests)
            found |= {self.requests[place] if by_token else place for place in places}
        return found


def nothing() -> None:
    """Change no buffer."""


def steps_to(mode: Mode, requests: int, *, filled: bool) -> tuple[Step, ...]:
    """Return what brings admitted requests to a batch of a mode, and last the batch's own step.

    A draft-extend that is `filled` has as many tokens of each request as a graph takes; one
    that is not has another number of each.
    """
    every = tuple(range(requests))
    if mode is Mode.DRAFT_EXTEND:
        caught_up = DraftExtend(every)
        decoded = [every] * SPECULATION.extend_tokens if filled else [every, (1, 2), (1,)]
        return (caught_up, *(Decode(picks) for picks in decoded), DraftExtend(every))
    return {
        Mode.DECODE: (Decode(every),),
        Mode.TARGET_VERIFY: (Verify(every, accept=0),),
        Mode.DRAFT: (DraftExtend(every), Draft(every)),
        Mode.FROZEN_DRAFT: (DraftExtend(every), Draft(every)),
    }[mode]


class ReadyForward:
    """Live requests about to be run by a runner.

    By default three, which pad the largest bucket of requests or of tokens, of whom request 1
    alone is longer than the window. A batch that is `filled` fills its bucket, tokens included,
    and is to be of as many requests as a bucket that is not the largest. `inputs` is what the
    runner's static inputs must be. Several may share a world: each brings its own KV and tables
    back before it runs its batch.
    """

    def __init__(
        self,
        world: GraphWorld,
        runner: str,
        inputs: Mapping[str, ExpectedInput],
        *,
        requests: int = REQUESTS,
        filled: bool = False,
    ) -> None:
        self.name = runner
        self.world = world
        self.runner = world.runners[runner]
        self.inputs = inputs
        self.requests = requests
        world.reset()
        if self.runner.mode is Mode.EXTEND:
            self.batch = self._filled_prefill() if filled else self._prefill()
        else:
            for prompt in (5, world.config.window + 3, 4)[:requests]:
                world.run(Admit(prompt, chunk=prompt))
            *before, last = steps_to(self.runner.mode, requests, filled=filled)
            for step in before:
                world.run(step)
            self.batch = self._plan(last)
        assert self.batch.live_requests == requests
        allocator, tables = world.scheduler.allocator, world.pools.tables
        self.free = {Kind.FULL: allocator.free_full[0], Kind.SWA: allocator.free_swa[0]}
        state = world.pools.storage, tables.full_to_swa_index_mapping, tables.req_to_token
        self._kept = [(tensor, tensor.clone()) for tensor in state]

    @cached_property
    def plain(self) -> Launched:
        """What the batch gives with nothing changed."""
        return self.launch()

    def _prefill(self) -> ForwardBatch:
        """Return a batch that goes on with a long prompt between two short ones."""
        window = self.world.config.window
        self.world.run(Admit(window + 3, chunk=4))
        long = self._plan(Extend(0, tokens=window))
        return self._of_prompts(5, 3, between=long.spans)

    def _filled_prefill(self) -> ForwardBatch:
        """Return a batch of prompts that fill the smallest bucket."""
        ones = [1] * (self.requests - 1)
        return self._of_prompts(self.runner.buckets[0] - sum(ones), *ones)

    def _of_prompts(self, first: int, *others: int, between: Sequence[Span] = ()) -> ForwardBatch:
        """Return a batch of whole prompts, with other spans after the first."""
        spans = [self._plan(Admit(prompt, chunk=prompt)).spans for prompt in (first, *others)]
        rest = (span for of_prompt in spans[1:] for span in of_prompt)
        return self.world.scheduler.batch_of(Mode.EXTEND, [*spans[0], *between, *rest])

    def _plan(self, step: Step) -> ForwardBatch:
        work = self.world.scheduler.plan(step)
        assert work is not None and work.batch is not None
        return work.batch

    def buffer(self, name: str) -> Tensor:
        """Return a static buffer."""
        return self.runner.static_buffers()[name]

    def counts(self) -> list[int]:
        """Return how many tokens each request has in the forward."""
        return [len(span.positions(self.batch.mode)) for span in self.batch.spans]

    def first(self, request: int) -> int:
        """Return the row of a request's first token."""
        return sum(self.counts()[:request])

    def last(self, request: int) -> int:
        """Return the row of a request's last token."""
        return self.first(request + 1) - 1

    def at(self, name: str, request: int) -> int:
        """Return where in a static input the first element of a request stands."""
        places = {
            Axis.REQUEST: request,
            Axis.DRAFT_SLOT: request * SPECULATION.slots,
            Axis.MASK: sum(
                len(span.tree) * (span.begin + len(span.tree))
                for span in self.batch.spans[:request]
            ),
        }
        # What is no input is a list: one element per request, where it has none per token.
        axis = self.inputs[name].axis if name in self.inputs else Axis.REQUEST
        return places.get(axis, self.first(request))

    def owned(self, kind: Kind) -> set[int]:
        """Return the slots that the forward is to write.

        A draft's last step of each branch is proposed and never run.
        """
        if self.batch.mode is Mode.FROZEN_DRAFT:
            return set()
        return {
            slot
            for span in self.batch.spans
            for place, slot in enumerate(slots_of(span, kind))
            if self.batch.mode is not Mode.DRAFT or place % SPECULATION.steps < SPECULATION.forwards
        }

    def forward(self) -> Forward:
        """Run the batch through the engine, and see that the runner replays it."""
        for tensor, kept in self._kept:
            tensor.copy_(kept)
        forward = self.world.engine.forward(self.batch)
        assert forward.replay is not None and forward.replay.runner == self.name
        return forward

    def launch(
        self, at_populate: Callable[[], object] = nothing, at_launch: Callable[[], object] = nothing
    ) -> Launched:
        """Run the padded batch with the subject as it was captured.

        `at_populate` runs once the live inputs are copied, `at_launch` once the metadata is
        written.
        """
        self.world.recapture()
        populate, launch, entries = self.runner.inputs.populate, self.runner.launch, [at_populate]

        def populate_and_change(*inputs: Any, **padded: Any) -> None:
            populate(*inputs, **padded)
            if entries:  # A prefill populates once more, with what it makes of these inputs.
                entries.pop()()

        def change_and_launch(*arguments: Any, **named: Any) -> Any:
            at_launch()
            return launch(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.runner.inputs, "populate", populate_and_change)
            patch.setattr(self.runner, "launch", change_and_launch)
            forward = self.forward()
        assert forward.replay is not None and forward.replay.padded
        output = {name: tensor.to("cpu", copy=True) for name, tensor in forward.output.items()}
        (storage, before), *_ = self._kept
        changed = self.world.pools.arenas_of(bits(storage) != bits(before))
        written = {
            (role, kind): set(arena.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist()) - {0}
            for role, kind, arena in changed
        }
        return Launched(output, written, self.batch.token_requests.tolist())


def slots_of(span: Span, kind: Kind) -> list[int]:
    """Return the slots of a span's columns."""
    return list(span.full_slots if kind is Kind.FULL else span.swa_slots)


def live_values(planned: ReadyForward, tokens_per_request: int) -> dict[str, Tensor]:
    """Return what the live part of each populated static input must be, read off the batch."""
    batch = planned.batch
    # A bucket of tokens has no token count among its inputs.
    bucket = next(bucket for bucket in planned.runner.buckets if bucket >= planned.requests)
    requests = batch.token_requests
    swa_slots = [slot for span in batch.spans for slot in slots_of(span, Kind.SWA)]
    named = {name: value for name in planned.inputs if (value := batch.value(name)) is not None}
    named["out_cache_loc_swa"] = torch.tensor(swa_slots)
    named["extend_seq_lens_cpu"] = torch.tensor(planned.counts())
    named["global_num_tokens"] = torch.tensor([bucket * tokens_per_request])
    if "input_embeds" in planned.inputs:
        world, ops = planned.world, planned.runner.ops
        _, device = transfer(path_lists(batch), batch.positions.device)
        states = world.model.advance_states(
            ops, world.pools.state.recurrent.clone(), paths_of(batch, device), batch.input_ids
        )
        named["input_embeds"] = world.model.payload(
            ops,
            states,
            batch.mamba_track_mask[requests],
            batch.encoder_lens[requests],
            batch.lora_ids[requests],
            batch.input_ids,
        )
    found = {name: named[name] for name, row in planned.inputs.items() if row.populated}
    if batch.mode is Mode.FROZEN_DRAFT:  # What is per request has a row for each branch.
        for name, row in planned.inputs.items():
            if row.axis is Axis.TOKEN and found[name].shape[0] == batch.live_requests:
                found[name] = found[name].repeat_interleave(SPECULATION.topk)
    return found
