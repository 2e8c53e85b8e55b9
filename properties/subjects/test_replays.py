"""Every capturing runner's replays, held against what it captured, run eagerly."""

import pytest
import torch
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Idle,
    Step,
    Verify,
    idle_modes,
)
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.model import Output
from paritybit.subjects.runners import engine_runners
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.toggles import LocationScheme

from properties.support.subjects.engines import ENGINES, TRIALS, trial_of
from properties.support.subjects.graph_world import shared_world
from properties.support.subjects.runners import EXPECTED

CAPTURING = [
    engine
    for engine in ENGINES
    if all(EXPECTED[runner.name].captures for runner in engine_runners(engine))
]

STEPS: tuple[Step, ...] = (
    Admit(4, chunk=4),
    Admit(5, chunk=5),
    Admit(15, chunk=15),
    DraftExtend((0, 1, 2)),  # too long for a graph; from here on the draft model has caught up
    Draft((0, 1, 2)),
    Draft((2, 0)),
    Verify((2, 1, 0), accept=1),
    DraftExtend((0, 1, 2)),
    *[Decode((1, 2))] * 4,
    DraftExtend((1, 2)),
    Verify((1, 2), accept=0),
    Decode((0, 1, 2)),
    *(Idle(pick) for pick in range(4)),
)
"""Every runner of an engine, on a full bucket and on a padded one, within and past the window."""


def run_eagerly(runner: GraphRunner, batch: ForwardBatch | None, bucket: int) -> Output:
    """Run what a bucket captured, on the static inputs and the metadata as they are."""
    runner.pool.invalidate_loc_cache()
    return runner.launch(batch, bucket, captured=False)


def test_these_engines_have_every_runner_that_captures() -> None:
    under_test = {runner.name for name in CAPTURING for runner in engine_runners(name)}
    assert under_test == {name for name, row in EXPECTED.items() if row.captures}


@pytest.mark.parametrize(("engine", "scheme"), [key for key in TRIALS if key[0] in CAPTURING])
def test_a_replayed_forward_has_the_bits_of_its_function_run_eagerly(
    engine: str, scheme: LocationScheme, device: str
) -> None:
    """Static output and all KV; of a prefill the live rows, for no one writes its others."""
    world = shared_world(trial_of(engine, scheme, device))
    world.reset()
    storage = world.pools.storage
    compared: set[tuple[str, bool]] = set()
    for step in STEPS:
        work = world.scheduler.plan(step)
        assert work is not None
        before = storage.clone()
        forward = world.engine.forward(work.batch, work.mode)
        replay = forward.replay
        if replay is not None:
            runner = world.runners[replay.runner]
            rows = slice(None) if runner.attention_captured else slice(replay.live_rows)
            output = {name: value[rows].clone() for name, value in replay.output.items()}
            written = storage.clone()
            # A prefill scans the recurrent states before its graphs run.
            kept = None if runner.attention_captured else sum(world.pools.layout.counts)
            storage[:kept] = before[:kept]
            eager = run_eagerly(runner, work.batch, replay.bucket)
            assert eager.keys() == output.keys() != set()
            for name, value in output.items():
                assert torch.equal(bits(eager[name][rows]), bits(value)), (step, name)
            assert torch.equal(bits(storage), bits(written)), step
            compared.add((replay.runner, replay.padded))
        if work.batch is not None:
            world.scheduler.commit(work.batch, forward.output)
    assert compared == {(name, padded) for name in world.runners for padded in (True, False)}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_idle_step_replays_the_runner_of_its_mode(engine: str, device: str) -> None:
    """Though an engine that ran another one would give nobody a wrong bit."""
    world = shared_world(trial_of(engine, LocationScheme.PRESET, device))
    world.reset()
    for pick, mode in enumerate(idle_modes(world.trial.modes)):
        ran = world.run(Idle(pick))
        assert ran is not None and ran.forward.replay is not None
        assert EXPECTED[ran.forward.replay.runner].mode is mode
