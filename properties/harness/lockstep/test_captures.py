"""Runners are captured when a schedule first needs them: which, when, and that no order matters."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import pytest
import torch
from paritybit.harness.campaigns.hunt import draw
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.bits import bits, clone_output
from paritybit.harness.lockstep.config import FRESH_LOGGER, TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.padding import spoiled_memory
from paritybit.harness.lockstep.pair import Pair, subject_alone
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Finish,
    Schedule,
    Step,
    Verify,
    modes_of,
)
from paritybit.reference.batch import Mode
from paritybit.subjects.captured import CapturedEngine, without_collector
from paritybit.subjects.runners import ONE_PER_ENGINE
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from properties.support.harness.planting import SCHEDULE, captured

DECODES = Schedule((Admit(3, 9), Decode((0,)), Finish(0)))
VERIFIES = Schedule((Admit(3, 9), Verify((0,), 1)))

ON_REQUEST = TrialConfig(buckets=(2, 4), token_buckets=(4, 12)).with_bug("swa_pad")
"""The trial of a bug that lies in no capture."""


def captured_in(pair: Pair, orders: Sequence[Sequence[Mode]]) -> CapturedEngine:
    """Return an engine like a pair's fresh one, whose runners are captured in some order."""
    trial = pair.trial
    engine = CapturedEngine(
        trial.ops(),
        pair.run_models,
        pair.graph_pools,
        trial.subject(),
        trial.buckets,
        trial.token_buckets,
        FRESH_LOGGER,
        records_ops=pair.records_ops,
        modes=(),
        capturing=spoiled_memory,
    )
    for modes in orders:
        engine.capture(modes)
    return engine


def statics_of(engine: CapturedEngine) -> dict[str, Tensor]:
    """Return copies of the static inputs and lists of every runner of an engine, by name."""
    return {
        f"{mode} {name}": buffer.clone()
        for mode, runner in engine.runners.items()
        for name, buffer in chain(runner.inputs.buffers.items(), runner.metadata.buffers.items())
    }


def held_after(pair: Pair, engine: CapturedEngine, planned: PlannedStep) -> dict[str, Tensor]:
    """Run a step on an engine that was just captured; return all that it gives and holds then."""
    engine.reset()
    pair.equalize_padding(engine, planned)
    forward = engine.forward(planned.graph.batch, planned.mode)
    output = clone_output(forward.output)
    held = {**statics_of(engine), **output, "KV": pair.graph_pools.storage.clone()}
    pair.restore_graph()
    return held


def differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors whose bits differ."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(bits(one[name]), bits(other[name]))]


def differences(pair: Pair, other: CapturedEngine) -> Iterator[tuple[Mode, list[str]]]:
    """Play the schedule; yield how an engine differs from the fresh one in what it can replay."""
    engines = pair.fresh_engine, other

    def run(_: Pair, planned: PlannedStep) -> list[str]:
        if other.lacks({planned.mode}):
            return []
        return differing(*(held_after(pair, engine, planned) for engine in engines))

    pair.reset(SCHEDULE.seed)
    for place, step in enumerate(SCHEDULE.steps):
        seen = pair.step(step, place, {"other": run})
        if seen is not None and "other" in seen.extra and not other.lacks({seen.mode}):
            yield seen.mode, seen.extra["other"]


@pytest.mark.parametrize(
    ("engine", "scheme"), list(zip(ONE_PER_ENGINE, LocationScheme, strict=True))
)
def test_a_runner_is_the_same_in_whatever_order_runners_are_captured(
    engine: str, scheme: LocationScheme, device: str
) -> None:
    """Each alone, and all from the last to the first: KV, outputs and static buffers of replays."""
    trial = TrialConfig(engine, device=device, scheme=scheme, buckets=(2, 4), token_buckets=(4, 24))
    pair = Lockstep(trial).pair
    fresh = pair.fresh_engine
    modes = list(fresh.runners)
    backwards = [[mode] for mode in reversed(modes)]
    for order in (*([[mode]] for mode in modes), backwards):
        other = captured_in(pair, order)
        fresh.reset()
        assert differing(statics_of(fresh), statics_of(other)) == []
        compared = dict(differences(pair, other))
        assert compared == {mode: [] for mode in other.engine.captured}


@pytest.mark.parametrize("runner", ["decode", "breakable"])
def test_the_modes_of_a_schedule_are_all_that_it_runs(runner: str) -> None:
    """Of drawn schedules of every engine; that the engine of a bug runs no other is enforced."""
    trial = TrialConfig(runner, buckets=(2, 4), token_buckets=(4, 12))
    lockstep = Lockstep(trial, (), engines=subject_alone)
    ran = set[Mode]()

    def play(schedule: Schedule) -> None:
        needed = modes_of(schedule.steps, lockstep.pair.modes)
        here = set[Mode]()

        def see(_: int, __: Step, observation: Observation | None, ___: frozenset[str]) -> None:
            here.update([] if observation is None else [observation.mode])

        assert lockstep.play(schedule, see).error is None
        assert here & lockstep.pair.modes <= needed
        ran.update(here)

    draw(lockstep.trial, play, 0, 6)
    assert ran >= lockstep.pair.modes


def modes_captured(lockstep: Lockstep) -> list[frozenset[Mode]]:
    """Return the modes whose runner is captured in the subject, and in the fresh engine."""
    return [engine.engine.captured for engine in captured(lockstep)]


def test_what_a_schedule_needs_is_captured_when_it_is_first_played() -> None:
    """In both engines, and nothing else; what is captured already is not captured again."""
    lockstep = Lockstep(ON_REQUEST)
    assert modes_captured(lockstep) == [frozenset()] * 2
    lockstep.play(DECODES)
    assert modes_captured(lockstep) == [{Mode.EXTEND, Mode.DECODE}] * 2
    graph = captured(lockstep)[0].runners[Mode.DECODE].captured[4]
    lockstep.play(VERIFIES)
    assert modes_captured(lockstep) == [{Mode.EXTEND, Mode.DECODE, Mode.TARGET_VERIFY}] * 2
    assert captured(lockstep)[0].runners[Mode.DECODE].captured[4] is graph


def test_a_lockstep_is_freed_without_the_collector() -> None:
    """The collector runs rarely, and a pair and its captured engines hold much memory."""
    lockstep = Lockstep(ON_REQUEST)
    lockstep.play(SCHEDULE)
    held = [weakref.ref(one) for one in (lockstep.pair, *captured(lockstep))]
    with without_collector():
        del lockstep
        assert [one() for one in held] == [None, None, None]
