"""Plants faults of vLLM, public ones and others, in a runner of a release; says who sees them.

A script: one release per process. `python -m properties.engines.mutated_vllm PACKAGE MUTATION …`,
where `none` is the release as it is.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from paritybit.harness.engines.playlist import SHRINKING, VERIFYING
from paritybit.harness.schedules.schedule import Admit, Decode, Finish, Schedule
from paritybit.reference.model import Model

from properties.engines.planting_vllm import Plant, played, say, shown_by

LONG = Schedule((Admit(30, 48), Admit(4, 24), Decode((0, 1)), Finish(1), Decode((0,))))
"""A request far beyond its window, whose first blocks are freed, decodes full and then padded."""

BORDER = Schedule((Admit(17, 48), Decode((0,)), Decode((0,))))
"""A request whose window still reaches into its first block."""

OTHER_SEED = 7
"""Seed of weights that are no longer the model's."""

OTHER_TOKENS = 50
"""Tokens of which another draft is one: the vocabulary has more."""

FORWARDS = 60
"""Forwards that shrinking one schedule may take."""


def as_it_is(own: Any) -> None:
    """Plant nothing."""


def leave_slots(own: Any) -> None:
    """Fill the slots' tail from the padded count of tokens on: pull request 36580."""
    runner = own.runner.runner
    tables = runner.block_tables
    compute = tables.compute_slot_mappings

    def computed(idx: Any, starts: Any, positions: Any, **named: Any) -> Any:
        before, live = tables.slot_mappings.clone(), int(starts[len(idx)])
        found = compute(idx, starts, positions, **named)
        padded = slice(live, len(positions))
        tables.slot_mappings[:, padded] = before[:, padded]
        return found

    tables.compute_slot_mappings = computed


def slots_of_the_null_block(own: Any) -> None:
    """Pad slots with 0, a slot like any other, in place of -1: pull request 39444."""
    runner = own.runner.runner
    tables = runner.block_tables
    compute = tables.compute_slot_mappings

    def computed(idx: Any, starts: Any, *rest: Any, **named: Any) -> Any:
        found = compute(idx, starts, *rest, **named)
        tables.slot_mappings[:, int(starts[len(idx)]) :] = 0
        return found

    tables.compute_slot_mappings = computed


def leave_starts(own: Any) -> None:
    """Keep an earlier batch's end of `query_start_loc`: pull request 40003."""
    runner = own.runner.runner
    prepare, held = runner.prepare_inputs, runner.input_buffers.query_start_loc

    def prepared(*arguments: Any, **named: Any) -> Any:
        before = held.clone()
        batch = prepare(*arguments, **named)
        held[batch.num_reqs + 1 :] = before[batch.num_reqs + 1 :]
        return batch

    runner.prepare_inputs = prepared


def keep_freed_blocks(own: Any) -> None:
    """Keep blocks below a window in the tables once they are freed: pull request 42276."""
    runner = own.runner.runner
    tables = runner.block_tables
    gather = tables.gather_block_tables

    def gathered(*arguments: Any, num_computed_tokens: Any = None, **named: Any) -> Any:
        return gather(*arguments, **named)

    tables.gather_block_tables = gathered


def read_a_copy(own: Any) -> None:
    """Let graphs read a copy of the block tables that no replay refreshes: pull request 52383."""
    runner = own.runner.runner
    tables = runner.block_tables
    dummy = tables.get_dummy_block_tables
    tables.get_dummy_block_tables = lambda rows: tuple(one.clone() for one in dummy(rows))
    recapture(own)
    del tables.get_dummy_block_tables


def keep_old_weights(own: Any) -> None:
    """Let graphs hold weights that were made anew since: issue 48941."""
    runner = own.runner.runner
    right = runner.model.weights
    runner.model.weights = Model(right.config, right.dtype, torch.device("cpu"), OTHER_SEED)
    recapture(own)
    runner.model.weights = right


def recapture(own: Any) -> None:
    """Let the engine capture its graphs anew."""
    manager = own.runner.runner.cudagraph_manager
    manager.graphs, manager.hidden_states = {}, None
    own.runner.capture()


def freeing(own: Any, freed: Callable[[list[Any]], list[Any]]) -> None:
    """Let every pool of blocks free what `freed` makes of the blocks it is to free."""
    requests, clear = own.requests, own.requests.clear

    def cleared() -> None:
        clear()
        pool = requests.manager.block_pool
        free = pool.free_blocks
        pool.free_blocks = lambda blocks: free(freed(list(blocks)))

    requests.clear = cleared


def leak_a_block(own: Any) -> None:
    """Free all blocks of a request but one."""
    freeing(own, lambda blocks: blocks[1:])


def free_a_held_block(own: Any) -> None:
    """Free, with those of a request, a block that another one holds."""

    def freed(blocks: list[Any]) -> list[Any]:
        manager = own.requests.manager.coordinator.single_type_managers[0]
        held = [block for of_one in manager.req_to_blocks.values() for block in of_one]
        return [*blocks, *(block for block in held if block not in blocks)][: len(blocks) + 1]

    freeing(own, freed)


def free_the_window(own: Any) -> None:
    """Free blocks that a window still reaches."""
    requests, clear = own.requests, own.requests.clear

    def cleared() -> None:
        clear()
        for one in requests.manager.coordinator.single_type_managers:
            if hasattr(one, "sliding_window"):
                one.sliding_window = 2

    requests.clear = cleared


def after_inputs(own: Any, change: Callable[[Any, Any], None]) -> None:
    """Change the engine's static buffers once a batch's inputs are prepared."""
    runner = own.runner.runner
    prepare = runner.prepare_inputs

    def prepared(*arguments: Any, **named: Any) -> Any:
        batch = prepare(*arguments, **named)
        change(runner.input_buffers, batch)
        return batch

    runner.prepare_inputs = prepared


def leave_lengths(own: Any) -> None:
    """Give padded requests a length."""
    after_inputs(own, lambda held, batch: held.seq_lens[batch.num_reqs :].fill_(3))


def read_one_key_more(own: Any) -> None:
    """Let a request read one key more than it has."""
    after_inputs(own, lambda held, batch: held.seq_lens[: batch.num_reqs].add_(1))


def unmark_padding(own: Any) -> None:
    """Do not mark padded tokens."""
    after_inputs(own, lambda held, batch: held.is_padding.zero_())


def rebind_lengths(own: Any) -> None:
    """Make a static buffer anew with each batch: graphs read the old one."""
    after_inputs(own, lambda held, batch: setattr(held, "seq_lens", held.seq_lens.clone()))


def narrow_positions(own: Any) -> None:
    """Make positions of another dtype before the graphs are captured."""
    held = own.runner.runner.input_buffers
    held.positions = held.positions.to(torch.int32)
    recapture(own)


def leave_rows(own: Any) -> None:
    """Leave blocks of an earlier batch in the rows of padded requests."""
    tables = own.runner.runner.block_tables
    gather = tables.gather_block_tables

    def gathered(idx_mapping: Any, *rest: Any, **named: Any) -> Any:
        found = gather(idx_mapping, *rest, **named)
        for one in tables.input_block_tables:
            one[len(idx_mapping) :, 0] = 2
        return found

    tables.gather_block_tables = gathered


def forget_rejections(own: Any) -> None:
    """Do not tell the engine which drafts were rejected."""
    settle = own.runner.settle
    own.runner.settle = lambda batch, starts, sampled, rejected: settle(
        batch, starts, sampled, [0] * len(rejected)
    )


def verify_another_draft(own: Any) -> None:
    """Verify a draft that was not proposed, the last of every request."""
    run = own.runner.run

    def ran(told: Any, *, verifies: bool) -> Any:
        drafts = told.scheduled_spec_decode_tokens
        for name, tokens in drafts.items():
            drafts[name] = [*tokens[:-1], (tokens[-1] + 1) % OTHER_TOKENS]
        return run(told, verifies=verifies)

    own.runner.run = ran


MUTATIONS: dict[str, Plant] = {
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

OWN: dict[str, Plant] = {
    mutation.__name__: mutation
    for mutation in (
        leak_a_block,
        free_a_held_block,
        free_the_window,
        leave_lengths,
        read_one_key_more,
        unmark_padding,
        rebind_lengths,
        narrow_positions,
        leave_rows,
    )
}
"""Further faults, which nobody has reported: of blocks, and of static inputs."""

OF_VERIFY: dict[str, Plant] = {
    mutation.__name__: mutation for mutation in (forget_rejections, verify_another_draft)
}
"""Faults of the runner that verifies drafts."""


def shown(engine: Any, mutation: str) -> dict[str, Any]:
    """Return what schedules show of the runner that a fault is about, with it planted in it."""
    verifies = mutation in OF_VERIFY
    runner = "target_verify" if verifies else "decode"
    plant = {"none": as_it_is, **MUTATIONS, **OWN, **OF_VERIFY}[mutation]
    schedules = (VERIFYING,) if verifies else (SHRINKING, LONG, BORDER)
    leg = played(engine, runner, plant, schedules)
    cases = leg.cases(0, FORWARDS) if mutation in {"none", "leave_slots"} else []
    return {
        **shown_by(leg),
        "shrunk": {str(case.target): len(case.schedule.steps) for case in cases},
        "proofs": [list(one.explanation.proof) for one in leg.shown if one.explanation is not None],
    }


if __name__ == "__main__":
    say(sys.argv[1], shown, sys.argv[2:])
