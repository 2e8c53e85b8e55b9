"""Engines that keep state which no one declared, in each of the places where Python can.

A fault in a place is built by a function of this module, so that a fresh process builds it too.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Role
from paritybit.subjects import pool as module
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.protocol import Forward
from paritybit.subjects.runners.cpu_graph import CpuGraphRunner
from paritybit.subjects.toggles import LocationScheme

from properties.support.harness.planting import captured
from properties.support.harness.tensors import first_of, flip

TRIAL = TrialConfig("cpu_graph", scheme=LocationScheme.MEMO, buckets=(4,), token_buckets=(4,))

MANY = 60
"""More replays than a drawn schedule of these trials has, extra runs included."""

Memory = dict[str, int]
"""What is remembered from one schedule to the next."""


def on_the_engine(engine: CapturedEngine) -> Memory:
    """A host table of the engine."""
    return attribute_of(engine.engine)


def of_a_pool(engine: CapturedEngine) -> Memory:
    """A table that the KV pool owns."""
    return attribute_of(engine.engine.pools[Role.TARGET].pool)


def of_a_runner(engine: CapturedEngine) -> Memory:
    """A Python attribute of a runner."""
    return attribute_of(engine.runners[Mode.DECODE])


def of_a_class(engine: CapturedEngine) -> Memory:
    """An attribute of a runner's class."""
    return attribute_of(CpuGraphRunner)


def of_a_module(engine: CapturedEngine) -> Memory:
    """A global variable of a module."""
    return attribute_of(module)


PLACES = (on_the_engine, of_a_pool, of_a_runner, of_a_class, of_a_module)


def attribute_of(owner: Any) -> Memory:
    """Return the table that an object keeps, made on first use."""
    if not hasattr(owner, "remembered"):
        owner.remembered = {}
    table: Memory = owner.remembered
    return table


def forget() -> None:
    """Take away what places outside an engine keep."""
    for owner in (CpuGraphRunner, module):
        if hasattr(owner, "remembered"):
            del owner.remembered


def after_many(memory: Memory, size: int) -> bool:
    """Whether there were more replays than a schedule has."""
    memory["replays"] = memory.get("replays", 0) + 1
    return memory["replays"] > MANY


def after_a_larger(memory: Memory, size: int) -> bool:
    """Whether a larger batch went before, as it may in the same schedule or in another."""
    memory["largest"] = max(memory.get("largest", 0), size)
    return 0 < size < memory["largest"]


Wrong = Callable[[Memory, int], bool]


def keeping(
    place: Callable[[CapturedEngine], Memory],
    wrong: Wrong,
    trial: TrialConfig,
    properties: Collection[str] = STEP_PROPERTIES,
) -> Lockstep:
    """Return a lockstep whose engines remember in a place, and then give a wrong bit."""
    lockstep = Lockstep(trial, properties)
    for engine in captured(lockstep):
        place(engine)
        engine.engine.forward = partial(  # type: ignore[method-assign]
            remembering, engine.engine.forward, place, engine, wrong
        )
    return lockstep


def remembering(
    forward: Callable[..., Forward],
    place: Callable[[CapturedEngine], Memory],
    engine: CapturedEngine,
    wrong: Wrong,
    batch: ForwardBatch | None,
    *words: Any,
) -> Forward:
    """Run a forward; spoil the live output of a replay if what is remembered says so."""
    result = forward(batch, *words)
    if result.replay is None:
        return result
    if wrong(place(engine), result.replay.live_size) and batch is not None:
        flip(first_of(result.replay.live_output), -1, -1)
    return result
