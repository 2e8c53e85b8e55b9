"""The graph world of a trial alone: pools, scheduler and captured engine, shared by tests.

Knows how an engine is built and how it gets its just-captured bytes back. For the tests of
the subjects, which need no eager world beside it.
"""

import logging
from dataclasses import dataclass
from functools import cache

import torch
from paritybit.harness.lockstep.config import DTYPES, TrialConfig
from paritybit.harness.lockstep.requests import PlannedForward
from paritybit.harness.lockstep.scheduler import Scheduler
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import PRESETS, Role, draft_config
from paritybit.reference.model import Model
from paritybit.reference.pool import KVPools
from paritybit.subjects.engine import Engine
from paritybit.subjects.protocol import Forward
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor


@dataclass(frozen=True)
class Ran:
    """What a step asked for, and what became of it."""

    work: PlannedForward
    forward: Forward

    @property
    def batch(self) -> ForwardBatch:
        """The batch of a step that was not idle."""
        assert self.work.batch is not None
        return self.work.batch

    @property
    def path(self) -> tuple[str, str]:
        """The mode, and whether a graph was replayed."""
        return str(self.work.mode), "eager" if self.forward.replay is None else "replay"


class GraphWorld:
    """An engine that a scheduler plays steps on, with a list of the warnings that it logged."""

    def __init__(self, trial: TrialConfig) -> None:
        torch.set_num_threads(1)
        self.trial = trial
        self.config = PRESETS[trial.preset].tiny
        dtype, device = DTYPES[trial.dtype], torch.device(trial.device)
        draft = draft_config(self.config)
        self.model = Model(self.config, dtype, device)
        models = {Role.TARGET: self.model, Role.DRAFT: Model(draft, dtype, device, seed=1)}
        self.pools = KVPools(self.config, draft, trial.sizes, dtype, device)
        self.warnings: list[str] = []
        self.engine = Engine(
            trial.ops(),
            models,
            self.pools,
            trial.subject(),
            trial.buckets,
            trial.token_buckets,
            _logger_into(self.warnings),
        )
        self.engine.capture(self.engine.runners)
        self.capture_warnings = tuple(self.warnings)
        self.scheduler = Scheduler(
            self.config,
            self.pools,
            max(trial.buckets),
            trial.modes,
            self.engine.allocator_changed,
        )
        self.runners: dict[str, GraphRunner] = {
            runner.name: runner for runner in self.engine.runners.values()
        }
        self._states = {role: pool.state for role, pool in self.engine.pools.items()}
        self._buffers: list[tuple[Tensor, Tensor]] = [
            (buffer, buffer.clone())
            for runner in self.runners.values()
            for buffer in runner.static_buffers().values()
        ]

    def reset(self, seed: int = 0) -> None:
        """Start again from the bytes and the slot order of `seed`, with an engine just captured."""
        self.scheduler.reset(seed)
        self.recapture()
        self.warnings.clear()

    def recapture(self) -> None:
        """Give the static buffers and the Python state what they held after the capture."""
        for buffer, captured in self._buffers:
            buffer.copy_(captured)
        for role, pool in self.engine.pools.items():
            pool.state = self._states[role]

    def run(self, step: Step) -> Ran | None:
        """Plan a step, run what it asks for and commit it; None if it asks for no forward."""
        work = self.scheduler.plan(step)
        if work is None:
            return None
        forward = self.engine.forward(work.batch, work.mode)
        if work.batch is not None:
            self.scheduler.commit(work.batch, forward.output)
        return Ran(work, forward)


def _logger_into(messages: list[str]) -> logging.Logger:
    """Return a logger, of nobody else's, whose warnings are added to `messages`."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger = logging.Logger("the subject of a test", logging.WARNING)
    logger.addHandler(Keep())
    return logger


@cache
def shared_world(trial: TrialConfig) -> GraphWorld:
    """Return the world of a trial, captured once for all tests of a session.

    Sound because graphs never change, and because whoever takes the world resets it first:
    pools, tables, requests, static buffers and Python state are then as after the capture.
    What a test patches, it patches in a context of its own.
    """
    with torch.inference_mode():
        return GraphWorld(trial)
