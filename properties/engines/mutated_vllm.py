"""Plants public faults of vLLM in the decode runner of a release, and says what shows them.

A script: one release per process. `python -m properties.engines.mutated_vllm PACKAGE MUTATION …`,
where `none` is the release as it is.
"""

import json
import sys
import warnings
from collections.abc import Callable
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
from harness.engines.playlist import SHRINKING, Kind
from harness.schedules.schedule import Admit, Decode, Finish, Schedule
from reference.model import Model

LONG = Schedule((Admit(30, 48), Admit(4, 24), Decode((0, 1)), Finish(1), Decode((0,))))
"""A request far beyond its window, whose first blocks are freed, decodes full and then padded."""

OTHER_SEED = 7
"""Seed of weights that are no longer the model's."""

FORWARDS = 60
"""Forwards that shrinking one schedule may take."""


def leave_slots(runner: Any) -> None:
    """Fill the slots' tail from the padded count of tokens on: pull request 36580."""
    tables = runner.block_tables
    compute = tables.compute_slot_mappings

    def computed(idx: Any, starts: Any, positions: Any, **named: Any) -> Any:
        before, live = tables.slot_mappings.clone(), int(starts[len(idx)])
        found = compute(idx, starts, positions, **named)
        padded = slice(live, len(positions))
        tables.slot_mappings[:, padded] = before[:, padded]
        return found

    tables.compute_slot_mappings = computed


def slots_of_the_null_block(runner: Any) -> None:
    """Pad slots with 0, a slot like any other, in place of -1: pull request 39444."""
    tables = runner.block_tables
    compute = tables.compute_slot_mappings

    def computed(idx: Any, starts: Any, *rest: Any, **named: Any) -> Any:
        found = compute(idx, starts, *rest, **named)
        tables.slot_mappings[:, int(starts[len(idx)]) :] = 0
        return found

    tables.compute_slot_mappings = computed


def leave_starts(runner: Any) -> None:
    """Keep an earlier batch's end of `query_start_loc`: pull request 40003."""
    prepare, held = runner.prepare_inputs, runner.input_buffers.query_start_loc

    def prepared(*arguments: Any, **named: Any) -> Any:
        before = held.clone()
        batch = prepare(*arguments, **named)
        held[batch.num_reqs + 1 :] = before[batch.num_reqs + 1 :]
        return batch

    runner.prepare_inputs = prepared


def keep_freed_blocks(runner: Any) -> None:
    """Keep blocks below a window in the tables once they are freed: pull request 42276."""
    tables = runner.block_tables
    gather = tables.gather_block_tables

    def gathered(*arguments: Any, num_computed_tokens: Any = None, **named: Any) -> Any:
        return gather(*arguments, **named)

    tables.gather_block_tables = gathered


def read_a_copy(runner: Any) -> None:
    """Let graphs read a copy of the block tables that no replay refreshes: pull request 52383."""
    tables = runner.block_tables
    dummy = tables.get_dummy_block_tables
    tables.get_dummy_block_tables = lambda rows: tuple(one.clone() for one in dummy(rows))
    recapture(runner)
    del tables.get_dummy_block_tables


def keep_old_weights(runner: Any) -> None:
    """Let graphs hold weights that were made anew since: issue 48941."""
    right = runner.model.weights
    runner.model.weights = Model(right.config, right.dtype, torch.device("cpu"), OTHER_SEED)
    recapture(runner)
    runner.model.weights = right


def recapture(runner: Any) -> None:
    """Let the engine capture its graphs anew."""
    manager = runner.cudagraph_manager
    manager.graphs, manager.hidden_states = {}, None
    runner.paritybit_capture()


MUTATIONS: dict[str, Callable[[Any], None]] = {
    mutation.__name__: mutation
    for mutation in (
        leave_slots,
        slots_of_the_null_block,
        leave_starts,
        keep_freed_blocks,
        read_a_copy,
        keep_old_weights,
    )
}
"""Public faults of the engine, by name."""


def shown(engine: Any, mutation: str) -> dict[str, Any]:
    """Return what two schedules show of the decode runner with one fault planted in it."""
    adapter = ADAPTERS["vllm"]
    trial = adapter.trial_of("decode", "gpt_oss", Kind.REPLAYED, "cpu")

    def engines(pair: Any) -> Any:
        subject, fresh = VllmEngines(engine, set())(pair)
        if mutation != "none":
            own: Any = subject
            own.runner.runner.paritybit_capture = own.runner.capture
            MUTATIONS[mutation](own.runner.runner)
        return subject, fresh

    leg = Leg(Lockstep(trial, engines=engines), Evidence("decode", adapter.faults), "")
    for schedule in (SHRINKING, LONG):
        leg.play(schedule, STEP_PROPERTIES)
    cases = leg.cases(0, FORWARDS) if mutation in {"none", "leave_slots"} else []
    return {
        "violated": sorted(leg.failing),
        "faults": {judged.fault: judged.verdict for judged in leg.evidence.judge()},
        "messages": {name: message for name, (_, message) in leg.failing.items()},
        "padded": leg.result.padded_replays,
        "shrunk": {str(case.target): len(case.schedule.steps) for case in cases},
        "proofs": [list(one.explanation.proof) for one in leg.shown if one.explanation is not None],
    }


def main(package: str, *mutations: str) -> None:
    """Plant faults one at a time and print what each shows."""
    warnings.simplefilter("ignore")
    engine = ADAPTERS["vllm"].load(Path(package), folder() / DEPENDENCIES, "cpu")
    found = {mutation: shown(engine, mutation) for mutation in mutations}
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
