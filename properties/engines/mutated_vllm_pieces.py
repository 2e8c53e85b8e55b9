"""Plants faults in vLLM's graphs in pieces, both kinds; says which properties see them.

A script: one release per process. `python -m properties.engines.mutated_vllm_pieces PACKAGE RUNNER
MUTATION …`, where `none` is the release as it is.
"""

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from harness.checks.play import Lockstep
from harness.checks.table import STEP_PROPERTIES
from harness.engines.adapters.packages import DEPENDENCIES
from harness.engines.adapters.table import ADAPTERS
from harness.engines.adapters.vllm import VllmEngines
from harness.engines.faults import Evidence
from harness.engines.fetch import folder
from harness.engines.legs import Leg
from harness.engines.playlist import Kind
from harness.schedules.schedule import Admit, Decode, Extend, Finish, Schedule
from properties.engines.mutated_vllm import (
    after_inputs,
    keep_old_weights,
    leave_slots,
    narrow_positions,
    unmark_padding,
)
from subjects.engines.shared.missing import RunnerLackingError

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


OF_BOTH: dict[str, Callable[[Any], None]] = {
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

OF_ONE: dict[str, dict[str, Callable[[Any], None]]] = {
    "piecewise": {"read_a_copy_of_attention": read_a_copy_of_attention},
    "breakable": {"attend_in_the_graph": attend_in_the_graph},
}
"""Those of one kind."""


def shown(engine: Any, runner: str, mutation: str) -> dict[str, Any]:
    """Return what a schedule shows of a runner with a fault planted in it."""
    adapter = ADAPTERS["vllm"]
    trial = adapter.trial_of(runner, "gpt_oss", Kind.REPLAYED, "cpu")

    def engines(pair: Any) -> Any:
        subject, fresh = VllmEngines(engine, set())(pair)
        if mutation != "none":
            {**OF_BOTH, **OF_ONE[runner]}[mutation](subject)
        return subject, fresh

    try:
        lockstep = Lockstep(trial, engines=engines)
    except RunnerLackingError as error:
        return {"lacking": str(error)}
    leg = Leg(lockstep, Evidence(runner, adapter.faults), "")
    leg.play(CHUNKS, STEP_PROPERTIES)
    return {
        "violated": sorted(leg.failing),
        "faults": {judged.fault: judged.verdict for judged in leg.evidence.judge()},
        "messages": {name: message for name, (_, message) in leg.failing.items()},
        "replays": leg.result.replays,
        "padded": leg.result.padded_replays,
    }


def main(package: str, runner: str, *mutations: str) -> None:
    """Plant faults one at a time and print what each shows."""
    warnings.simplefilter("ignore")
    engine = ADAPTERS["vllm"].load(Path(package), folder() / DEPENDENCIES, "cpu")
    found = {mutation: shown(engine, runner, mutation) for mutation in mutations}
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
