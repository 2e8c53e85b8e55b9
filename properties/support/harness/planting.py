"""Clean players that faults are planted in, and the places where a fault may reach in.

Knows the internals of our own engine. `faults` has the faults.
"""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from paritybit.harness.checks.play import Outcome, SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Idle,
    Schedule,
    Verify,
)
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from paritybit.subjects.engine import ReplicaEngine
from paritybit.subjects.protocol import ForwardResult, Overrides, ReplayResult
from paritybit.subjects.runners import RUNNERS, engine_runners
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.toggles import LocationScheme

SCHEDULE = Schedule(
    (
        Admit(11, 99),
        Admit(3, 99),
        Admit(2, 99),
        Decode((2, 0, 1)),
        DraftExtend((2, 1)),
        DraftExtend((0,)),
        Draft((1, 2, 0)),
        Verify((2, 0, 1), 2),
        DraftExtend((2, 0, 1)),
        Draft((1, 0)),
        Idle(0),
        Idle(2),
        Verify((1, 0), 0),
        Decode((2, 0)),
    ),
    seed=3,
)
"""What every runner replays, padded and not; an engine without drafts leaves out their steps.

Of a batch the first request was admitted after the last. No batch that a graph can run
is of one request, but for a prefill, or fills the largest bucket. The first draft-extend of
the longest request is more than a graph can run.
"""

Plant = Callable[[SchedulePlayer, str, pytest.MonkeyPatch], None]
"""Plants a fault that concerns one runner of a player, given its name."""

ForwardChange = Callable[[ForwardBatch | None, ForwardResult], None]
ReplayChange = Callable[[ForwardBatch | None, ReplayResult], None]


def engine_of(runner: str) -> str:
    """Return the first runner in whose engine the runner is. All of them replay in its trials."""
    return next(name for name in RUNNERS if RUNNERS[runner] in engine_runners(name))


ONE_PER_ENGINE = tuple(dict.fromkeys(map(engine_of, RUNNERS)))
"""The first runner of each engine."""


def build(device: str, engine: str) -> SchedulePlayer:
    """Return a new clean player of an engine, in sizes that are just enough for SCHEDULE."""
    trial = TrialConfig(
        engine,
        device=device,
        scheme=LocationScheme.PRESET,
        full_slots=56,
        swa_slots=48,
        rows=4,
        buckets=(2, 4),
        token_buckets=(4, 12),
    )
    return SchedulePlayer(trial, PROPERTIES)


@cache
def shared(device: str, engine: str) -> SchedulePlayer:
    """Return a clean player for faults that monkeypatch takes back."""
    return build(device, engine)


def play(
    device: str,
    runner: str,
    plant: Plant | None,
    monkeypatch: pytest.MonkeyPatch,
    properties: Sequence[str] = tuple(PROPERTIES),
) -> tuple[SchedulePlayer, Outcome]:
    """Play the schedule with a fault planted in a runner, or without one.

    Raises AssertionError, with the traceback, where the playing itself failed.
    """
    engine = engine_of(runner)
    player = shared(device, engine)
    player.set_properties(properties)
    with torch.inference_mode():
        if plant is not None:
            plant(player, runner, monkeypatch)
        outcome = player.play(SCHEDULE)
    assert outcome.error is None, outcome.error
    return player, outcome


def captured(player: SchedulePlayer) -> tuple[ReplicaEngine, ReplicaEngine]:
    """Return the subject of a player and its fresh engine."""
    return player.pair.engine, player.pair.fresh_engine


def runners_named(player: SchedulePlayer, name: str) -> list[GraphRunner]:
    """Return the runners of a name: the subject's and the fresh engine's."""
    return [engine.runners[RUNNERS[name].mode] for engine in captured(player)]


def on_forward(
    player: SchedulePlayer,
    monkeypatch: pytest.MonkeyPatch,
    change: ForwardChange,
    *,
    fresh_engine: bool = False,
) -> None:
    """Let `change` alter what each forward of the subject, and of the fresh engine, left behind."""

    def after(forward: Callable[..., ForwardResult]) -> Callable[..., ForwardResult]:
        def changed(batch: ForwardBatch | None, idle: Mode, *overrides: Overrides) -> ForwardResult:
            result = forward(batch, idle, *overrides)
            if not any(one.largest for one in overrides):  # Only replays in the usual bucket.
                change(batch, result)
            return result

        return changed

    for engine in captured(player)[: 1 + fresh_engine]:
        monkeypatch.setitem(vars(engine), "forward", after(engine.forward))


def on_replay(
    player: SchedulePlayer,
    runner: str,
    monkeypatch: pytest.MonkeyPatch,
    change: ReplayChange,
    *,
    fresh_engine: bool = False,
) -> None:
    """Let `change` alter what each replay of one runner left behind."""

    def changed(batch: ForwardBatch | None, result: ForwardResult) -> None:
        if result.replay is not None and result.replay.runner == runner:
            change(batch, result.replay)

    on_forward(player, monkeypatch, changed, fresh_engine=fresh_engine)


def on_eager(
    player: SchedulePlayer,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[ForwardBatch, Output], None],
) -> None:
    """Let `change` alter what each forward of the eager run left behind."""
    forward = player.pair.eager_decoder.forward

    def changed(batch: ForwardBatch) -> Output:
        output = forward(batch)
        change(batch, output)
        return output

    monkeypatch.setattr(player.pair.eager_decoder, "forward", changed)
