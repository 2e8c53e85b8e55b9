"""Plants faults in vLLM's graphs in pieces, both kinds; says which properties see them.

A script: one release per process. `python -m properties.engines.mutated_vllm_pieces PACKAGE RUNNER
MUTATION …`, where `none` is the release as it is.
"""

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from paritybit.harness.schedules.schedule import Admit, Decode, Extend, Finish, Schedule
from paritybit.subjects.engines.shared.missing import RunnerLackingError

from properties.engines.mutated_vllm import (
    after_inputs,
    as_it_is,
    keep_old_weights,
    leave_slots,
    narrow_positions,
    unmark_padding,
)
from properties.engines.planting_vllm import Plant, played, say, shown_by

CHUNKS = Schedule(
    (
        *(Admit(prompt, prompt) for prompt in (12, 3)),
        Admit(15, 7),
        Extend(0, 8),
        Decode((0, 1, 2)),
        Decode((2, 0)),
        Finish(1),
        Admit(11, 11),
        Decode((0, 1, 2)),
    )
)
"""Prompts whole and in chunks, padded after full ones, and decodes in the same graphs."""


def dispatch_too_few(own: Any) -> None:
    """Pick the graph of fewer tokens than a batch has."""
    manager = own.runner.runner.cudagraph_manager
    dispatch = manager.dispatch
    smallest = min(manager.compilation_config.cudagraph_capture_sizes)

    def dispatched(num_reqs: int, num_tokens: int, *rest: Any, **named: Any) -> Any:
        found = dispatch(num_reqs, num_tokens, *rest, **named)
        return replace(found, num_tokens=smallest) if num_tokens > smallest else found

    manager.dispatch = dispatched


def leave_ids(own: Any) -> None:
    """Keep the last token that an earlier batch had in its place."""
    held = own.runner.runner.input_buffers.input_ids
    before: list[Any] = [None]

    def change(buffers: Any, batch: Any) -> None:
        last = batch.num_tokens - 1
        now = held[last].clone()
        if before[0] is not None:
            held[last] = before[0]
        before[0] = now

    after_inputs(own, change)


def attend_in_the_graph(own: Any) -> None:
    """Capture attention with the rest: it goes by what the metadata was then."""
    decoder = own.runner.decoder
    attention = decoder.mix
    while hasattr(attention, "__wrapped__"):
        attention = attention.__wrapped__
    decoder.mix = attention
    own.runner.capture()


def read_a_copy_of_attention(own: Any) -> None:
    """Let every piece read a copy of what attention gave, which no replay refreshes."""
    decoder = own.runner.decoder

    def copied(piece: Any) -> Any:
        runnable = piece.runnable
        copies: list[torch.Tensor] = []

        def run(left: Any) -> Any:
            return runnable(replace(left, mixed=copies[-1]))

        def called(left: Any) -> Any:
            copies.append(left.mixed.clone())
            return piece(left)

        piece.runnable = run
        return called

    own.runner.renew = lambda: None
    cut = decoder.cut(own.runner.engine, own.runner.runner.vllm_config)
    cut.pieces = [cut.pieces[0], *map(copied, cut.pieces[1:])]
    own.runner.decoder = own.runner.runner.model = cut
    own.runner.capture()


OF_BOTH: dict[str, Plant] = {
    mutation.__name__: mutation
    for mutation in (
        leave_slots,
        unmark_padding,
        leave_ids,
        dispatch_too_few,
        keep_old_weights,
        narrow_positions,
    )
}
"""Faults of either kind of graphs, by name."""

OF_ONE: dict[str, dict[str, Plant]] = {
    "piecewise": {"read_a_copy_of_attention": read_a_copy_of_attention},
    "breakable": {"attend_in_the_graph": attend_in_the_graph},
}
"""Those of one kind."""


def shown(engine: Any, mutation: str, *, runner: str) -> dict[str, Any]:
    """Return what a schedule shows of a runner with a fault planted in it."""
    plant = {"none": as_it_is, **OF_BOTH, **OF_ONE[runner]}[mutation]
    try:
        return shown_by(played(engine, runner, plant, (CHUNKS,)))
    except RunnerLackingError as error:
        return {"lacking": str(error)}


if __name__ == "__main__":
    say(sys.argv[1], partial(shown, runner=sys.argv[2]), sys.argv[3:])
