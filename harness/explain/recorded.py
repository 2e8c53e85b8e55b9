"""Witnessing one forward of a schedule: all that both worlds, and a just-captured twin, did.

The forward can then be run again with a static input changed, or with nothing captured:
what a change of one thing changes is what that thing is to blame for.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.explain.provenance import ForwardId, SlotLedger, StaticLedger, row_requests
from harness.lockstep.config import SUBJECT_LOGGER
from harness.lockstep.extra_runs import cloned
from harness.lockstep.observation import Before
from harness.lockstep.pair import CapturedEngine, Pair
from harness.lockstep.scheduler import Work
from harness.schedules.schedule import Schedule
from reference.config import Role
from reference.model import Output
from reference.ops import OpCall, Ops
from subjects.graphs.protocol import Graph
from subjects.pool import LocState
from subjects.runners.base import GraphRunner

Calls = list[OpCall]
Patch = tuple[str, int, Tensor]
"""A static buffer's name, an element of it, counted flat, and the value it is given."""


@dataclass(frozen=True)
class Site:
    """Where in the subject a message was logged: the functions, outermost first."""

    message: str
    functions: tuple[str, ...]
    file: str


class SiteTrap(logging.Handler):
    """Keeps the place in the subject's code of each warning while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sites: list[Site] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the place of one message: the frames between the engine and the pool."""
        root, frame, found = Path(__file__).parents[2], sys._getframe(), []
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(root / "subjects") and path.name != "pool.py":
                found.append((frame.f_code.co_qualname, str(path.relative_to(root))))
            frame = frame.f_back  # type: ignore[assignment]
        functions = tuple(name for name, _ in reversed(found))
        self.sites.append(Site(record.getMessage(), functions, found[0][1] if found else ""))


@contextmanager
def calls_of(ops: Ops) -> Iterator[Calls]:
    """Keep the calls of an op set while entered."""
    calls: Calls = []
    ops.calls = calls
    try:
        yield calls
    finally:
        ops.calls = None


@contextmanager
def replaced(runner: GraphRunner, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Give one runner another method while entered."""
    setattr(runner, name, method)
    try:
        yield
    finally:
        delattr(runner, name)


class EagerCapture:
    """In place of a capture: its function, run eagerly, through the same static buffers."""

    segments: tuple[Graph, ...] = ()

    def __init__(self, runner: GraphRunner, bucket: int) -> None:
        self.runner = runner
        self.bucket = bucket
        self.output: Output = {}

    def replay(self) -> None:
        """Run what was captured."""
        self.runner.preset_location(self.bucket)
        self.output = self.runner.run_once(self.bucket)


@dataclass(frozen=True)
class Run:
    """What a forward of the graph world gave: its live output, its ops, and all KV after it.

    `failed` says why it gave no output, if it did not; its ops then hold what they were given.
    """

    output: Output
    calls: Calls
    storage: Tensor
    failed: str | None


@dataclass
class RecordedForward:
    """One forward as it was witnessed. `turn` is its own; `ledger` ends with it.

    `written` tells who wrote each slot before it.
    `static` holds the static buffers of the replay's runner, by name, after the forward,
    and `fresh` those of a just-captured twin after the same forward.
    """

    pair: Pair
    turn: ForwardId
    work: Work
    before: Before
    eager_output: Output | None
    eager_calls: Calls
    eager_storage: Tensor
    run: Run
    fresh_calls: Calls
    static: dict[str, Tensor]
    fresh: dict[str, Tensor]
    ledger: StaticLedger
    written: SlotLedger
    sites: list[Site]
    states: Mapping[Role, LocState]
    runner: GraphRunner | None
    """The runner whose graph was replayed, if one was."""

    @property
    def live_size(self) -> int | None:
        """The live size of the replay, in its buckets' unit."""
        if self.runner is None:
            return None
        return 0 if self.work.batch is None else self.runner.size(self.work.batch)

    @property
    def bucket(self) -> int | None:
        """The bucket of the replay."""
        return None if self.runner is None else self.runner.bucket(self.live_size or 0)

    def again(self, patches: tuple[Patch, ...] = (), *, captured: bool = True) -> Run:
        """Run the forward once more from the same bytes, some static elements changed.

        Inputs are changed before the metadata is planned, metadata after it. Without
        `captured` the captured function runs eagerly, through the static buffers.
        """
        runner, bucket = self.runner, self.bucket
        assert runner is not None and bucket is not None
        planned = runner.plan

        def plan(bucket: int) -> None:
            apply(runner.inputs.buffers, patches)
            planned(bucket)
            apply(runner.metadata.buffers, patches)

        self.pair.graph_pools.storage.copy_(self.before.graph)
        for role, pool in self.pair.subject.engine.pools.items():
            pool.state = self.states[role]
        kept = runner.captured.get(bucket)
        if not captured and kept is not None:
            runner.captured[bucket] = EagerCapture(runner, bucket)  # type: ignore[assignment]
        try:
            with replaced(runner, "plan", plan):
                return run(self.pair, self.pair.subject, self.work)
        finally:
            if kept is not None:
                runner.captured[bucket] = kept


def apply(buffers: Mapping[str, Tensor], patches: tuple[Patch, ...]) -> None:
    """Write the patches that are of these buffers."""
    for name, element, value in patches:
        if name in buffers:
            buffers[name].view(-1)[element] = value


def run(pair: Pair, engine: CapturedEngine, work: Work) -> Run:
    """Run a forward over the graph world's pools and keep what it did."""
    output: Output = {}
    failed = None
    with calls_of(engine.ops) as calls:
        try:
            output = cloned(engine.engine.forward(work.batch, work.mode).output)
        except (IndexError, RuntimeError, ValueError) as error:
            failed = str(error).splitlines()[0]
    return Run(output, list(calls), pair.graph_pools.storage.clone(), failed)


def witness(pair: Pair, schedule: Schedule, number: int) -> RecordedForward:
    """Play a schedule up to its forward `number`, counted from 0, and witness that one.

    The worlds must not have parted before it. Raises ValueError if there is no such forward.
    """
    buffers = [
        each
        for runner in pair.subject.runners.values()
        for each in runner.static_buffers().values()
    ]
    ledger, slots = StaticLedger(buffers), SlotLedger(pair.graph_pools)
    trap = SiteTrap()
    SUBJECT_LOGGER.addHandler(trap)
    forwards = 0
    try:
        with torch.inference_mode():
            pair.reset(schedule.seed)
            for place, step in schedule.flat():
                eager, work = pair.eager.plan(step), pair.graph.plan(step)
                if eager is None or work is None:
                    continue
                recorded = _forward(pair, eager, work, ledger, slots, trap, (forwards, place))
                if forwards == number:
                    return recorded
                slots.follow(recorded.turn, recorded.run.calls)
                forwards += 1
                if work.batch is not None and eager.batch is not None:
                    assert recorded.eager_output is not None
                    pair.eager.commit(eager.batch, recorded.eager_output)
                    pair.graph.commit(work.batch, recorded.run.output)
    finally:
        SUBJECT_LOGGER.removeHandler(trap)
    raise ValueError(f"the schedule has {forwards} forwards, and no number {number}")


def _forward(
    pair: Pair,
    eager: Work,
    work: Work,
    ledger: StaticLedger,
    slots: SlotLedger,
    trap: SiteTrap,
    number: tuple[int, int],
) -> RecordedForward:
    """Run one step's forward in the eager world, on the twin and on the subject."""
    serials = tuple(
        pair.graph.request_of(span.row).serial for span in (work.batch.spans if work.batch else ())
    )
    rows = row_requests(work.batch, serials) if work.batch is not None else ()
    expected = work.batch is None or pair.trial.expects_graph(work.batch)
    runner = pair.subject.runners.get(work.mode) if expected else None
    turn = ForwardId(*number, runner.name if runner is not None else None, serials, rows)
    before = Before(pair.eager_pools.storage.clone(), pair.graph_pools.storage.clone())
    with calls_of(pair.decoder.ops) as eager_calls:
        output = pair.decoder.forward(eager.batch) if eager.batch is not None else None
    fresh_calls, fresh = _fresh(pair, work, runner)
    pair.graph_pools.storage.copy_(before.graph)
    states = {role: pool.state for role, pool in pair.subject.engine.pools.items()}
    trap.sites.clear()
    with ledger.during(turn, levelling=True):
        pair.subject.equalize_padding(work)
    with ledger.during(turn):
        done = run(pair, pair.subject, work)
    return RecordedForward(
        pair=pair,
        turn=turn,
        work=work,
        before=before,
        eager_output=output,
        eager_calls=list(eager_calls),
        eager_storage=pair.eager_pools.storage.clone(),
        run=done,
        fresh_calls=fresh_calls,
        static=_copied(runner),
        fresh=fresh,
        ledger=ledger,
        written=slots,
        sites=list(trap.sites),
        states=states,
        runner=runner,
    )


def _fresh(pair: Pair, work: Work, runner: GraphRunner | None) -> tuple[Calls, dict[str, Tensor]]:
    """Return the ops and the static buffers of a just-captured twin that runs a step."""
    if runner is None:
        return [], {}
    fresh_engine = pair.fresh_engine
    fresh_engine.recapture()
    fresh_engine.equalize_padding(work)
    return run(pair, fresh_engine, work).calls, _copied(fresh_engine.runners[work.mode])


def _copied(runner: GraphRunner | None) -> dict[str, Tensor]:
    """Return a runner's static buffers as they are now, by name."""
    if runner is None:
        return {}
    return {name: each.clone() for name, each in runner.static_buffers().items()}
