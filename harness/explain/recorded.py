"""One recorded forward of a schedule: rewind, reset one suspect, repeat, and judge.

`RecordedForward.again` repeats the graph world's forward from the same bytes with one thing reset.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from paritybit.harness.checks.property import Property
from paritybit.harness.explain.provenance import ForwardId, SlotLedger, StaticLedger
from paritybit.harness.explain.sources import SiteTrap
from paritybit.harness.lockstep.bits import bits, cloned, form
from paritybit.harness.lockstep.fresh_run import just_captured
from paritybit.harness.lockstep.logs import warnings_logged
from paritybit.harness.lockstep.noise import index_bounds
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep, owner_of
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import Span
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.reference.ops import OpCall, Ops
from paritybit.reference.pool import Tables
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.protocol import Forward, Overrides, Replay, ReplayFacts
from paritybit.subjects.runners.base import GraphRunner, overwrite
from torch import Tensor

Calls = list[OpCall]

Given = Callable[[str, tuple[Any, ...]], tuple[Any, ...]]
"""Returns the arguments for an op, given its name and its original arguments."""

StaticElement = tuple[str, int, Tensor]
"""A static buffer's name, the flat index of an element, and its new value."""

LENGTHS, ON_HOST = "seq_lens", "seq_lens_cpu"
"""Lengths, and their host copy. It must not exceed them, because it sizes the lists."""


@dataclass(frozen=True)
class TableCell:
    """A cell of index table number `table`, flat index, and the value that it gets."""

    table: int
    place: int
    value: int


@dataclass(frozen=True)
class Reset:
    """What a repeated forward has instead of what it had.

    - `elements`: values of static elements.
    - `cells`: values of cells of the index tables.
    - `batch`: values of the batch's `spec_info`, by name.
    - `captured`: if False, the captured function runs eagerly over the same static buffers.
    - `fresh`: whether a freshly captured engine runs it, over the same static buffers.
    """

    elements: tuple[StaticElement, ...] = ()
    cells: tuple[TableCell, ...] = ()
    batch: Mapping[str, Tensor] = field(default_factory=dict)
    captured: bool = True
    fresh: bool = False

    def __add__(self, other: "Reset") -> "Reset":
        """Return both resets in one."""
        return Reset(
            self.elements + other.elements,
            self.cells + other.cells,
            {**self.batch, **other.batch},
            self.captured and other.captured,
            self.fresh or other.fresh,
        )


NO_RESET = Reset()


@dataclass(frozen=True)
class RepeatedRun:
    """The results of a forward of the graph world: its live output, its ops, and all KV after it.

    `failed` says why it gave no output, if so. Its ops then hold their arguments. `forward` is the
    engine's result, valid until its next forward. It is None for the recorded forward itself.
    `warnings` are what it logged.
    """

    output: Output
    calls: Calls
    storage: Tensor
    failed: str | None
    forward: Forward | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class EarlierOutput:
    """A copy of the live output of one replay, made before it was overwritten."""

    step: int
    runner: str
    output: Output


@dataclass
class RecordedForward:
    """One recorded forward. `forward_id` is its own, and `ledger` ends with it.

    - Storages: all KV of a world, before and after the forward. `written` has each slot's last
      writer before it.
    - `static`, `static_before`, `fresh`: the static buffers of the replay's runner by name, after
      the forward, before it, and on the fresh engine after the same forward.
    - `state`: the engine's Python state before it.
    - `tables`, `eager_tables`: the index tables of both worlds during it.
    - `outputs`: the live outputs of earlier replays.
    - `observation`: what the checks see, with copies of the static buffers. None if the subject
      failed.
    - `runner`: the runner whose graph was replayed, if any.
    """

    pair: Pair
    forward_id: ForwardId
    planned: PlannedStep
    owners: tuple[Owner, ...]
    eager_before: Tensor
    graph_before: Tensor
    tables: tuple[Tensor, ...]
    eager_tables: tuple[Tensor, ...]
    outputs: tuple[EarlierOutput, ...]
    observation: Observation | None
    eager_output: Output | None
    eager_calls: Calls
    eager_storage: Tensor
    run: RepeatedRun
    fresh_calls: Calls
    static_before: dict[str, Tensor]
    static: dict[str, Tensor]
    fresh: dict[str, Tensor]
    ledger: StaticLedger
    written: SlotLedger
    sites: SiteTrap
    state: Any
    runner: GraphRunner | None

    @property
    def engine(self) -> CapturedEngine:
        """The engine under test."""
        return self.pair.subject

    @property
    def spans(self) -> tuple[Span, ...]:
        """The batch of the forward by request. Empty if it is idle."""
        batch = self.planned.graph.batch
        return batch.spans if batch is not None else ()

    @property
    def live_size(self) -> int | None:
        """The live size of the replay, in its buckets' unit."""
        if self.runner is None:
            return None
        batch = self.planned.graph.batch
        return 0 if batch is None else self.runner.size(batch)

    @property
    def bucket(self) -> int | None:
        """The bucket of the replay."""
        return None if self.runner is None else self.runner.bucket(self.live_size or 0)

    def owner_of(self, kind: Kind, slot: int) -> str:
        """Return the owner of a slot in words, including slots that are being written."""
        return owner_of(kind, slot, self.spans, self.owners)

    def again(self, reset: Reset = NO_RESET, given: Given | None = None) -> RepeatedRun:
        """Repeat the graph world's forward from the same bytes, with `reset`.

        Ops get the arguments that `given` returns. On CUDA, a reset that might lead out of bounds
        counts as failed without a run, because a device assertion ends the process.
        """
        pair = self.pair
        if pair.trial.device == "cuda" and not all(map(self._within_bounds, reset.elements)):
            return RepeatedRun({}, [], self.run.storage, "the value could lead out of bounds")
        pair.graph_pools.storage.copy_(self.graph_before)
        self._restore_tables()
        for cell in reset.cells:
            both(pair.graph_pools.tables)[cell.table].view(-1)[cell.place] = cell.value
        engine = self._rewound(reset)
        batch = self.planned.graph.batch
        if batch is not None and reset.batch:
            batch = replace(batch, spec_info={**batch.spec_info, **reset.batch})
        overrides = Overrides(elements=reset.elements, captured=reset.captured)
        engine.ops.given = given
        pair.log.take()
        try:
            with pair.log, warnings_logged():
                found = run(pair, engine, self.planned.given(batch), overrides)
            return replace(found, warnings=pair.log.take())
        finally:
            engine.ops.given = None
            self._restore_tables()

    def _rewound(self, reset: Reset) -> CapturedEngine:
        """Return the engine that runs the forward, with its state from before, and `reset`."""
        engine = self.engine
        if reset.fresh:
            just_captured(self.pair, self.planned)
            engine = self.pair.fresh_engine
        else:
            engine.restore(self.state)
        runner = engine.runners.get(self.planned.mode)
        if self.runner is not None and runner is not None:
            for name, buffer in runner.static_buffers().items():
                buffer.copy_(self.static_before[name])
            # An input that is made from a stale one is made from the right one.
            overwrite(runner.static_buffers(), Overrides(elements=reset.elements))
        return engine

    def _restore_tables(self) -> None:
        for table, during in zip(both(self.pair.graph_pools.tables), self.tables, strict=True):
            table.copy_(during)

    def _within_bounds(self, element: StaticElement) -> bool:
        """Whether an element may have a value, whatever the other elements are."""
        name, place, value = element
        if value.dtype.is_floating_point or value.dtype is torch.bool:
            return True
        bound = index_bounds(self.pair.config, self.pair.graph_pools.sizes).get(name, 0)
        if name in (LENGTHS, ON_HOST):
            bound = self.pair.config.max_context + 1
        if not 0 <= int(value) < bound:
            return False
        if name == LENGTHS:
            on_host = self.static.get(ON_HOST)
            return on_host is not None and int(on_host.view(-1)[place]) <= int(value)
        return name != ON_HOST or int(value) <= int(self.static[LENGTHS].view(-1)[place])

    def holds(self, rule: Property, run: RepeatedRun, reset: Reset) -> bool:
        """Whether a property holds for a forward that was repeated with `reset`.

        For a step that failed, it holds if the graph world equals the eager world.
        """
        seen, forward = self.observation, run.forward
        if run.failed is not None or forward is None:
            return False
        if seen is None or rule.judge is None:
            return self.agrees(run)
        replay = forward.replay
        engine = self.pair.fresh_engine if reset.fresh else self.engine
        output = run.output if seen.graph.batch is not None else None
        repeated = replace(
            seen,
            graph=replace(seen.graph, after=run.storage, output=output),
            replay=replay,
            facts=self._facts(engine, replay, fresh=reset.fresh),
            keys=forward.keys,
            static=copied(engine.runners.get(self.planned.mode)) if replay is not None else {},
            # The fresh engine is not heard, and no replay runs all lines of the function.
            warnings=run.warnings if reset.captured and not reset.fresh else seen.warnings,
        )
        return rule.judge(repeated) is None

    def _facts(
        self, engine: CapturedEngine, replay: Replay | None, *, fresh: bool
    ) -> ReplayFacts | None:
        """Return the facts of a repeated replay. The fresh engine does not count its replays."""
        if replay is None:
            return None
        facts, seen = engine.facts(replay), self.observation
        if not fresh or seen is None or seen.facts is None:
            return facts
        return replace(facts, allocated=seen.facts.allocated, replays=seen.facts.replays)

    def agrees(self, run: RepeatedRun) -> bool:
        """Whether a run left KV as the eager world did, reserved slots apart, and its output."""
        different = (bits(run.storage) != bits(self.eager_storage)) & self.pair.compared
        output = self.eager_output or {}
        return (
            not different.any()
            and form(run.output) == form(output)
            and all(torch.equal(bits(run.output[name]), bits(output[name])) for name in output)
        )


def run(
    pair: Pair, engine: CapturedEngine, planned: PlannedStep, overrides: Overrides
) -> RepeatedRun:
    """Run a forward over the graph world's pools, and keep its results."""
    output: Output = {}
    failed, forward = None, None
    with calls_of(engine.ops) as calls:
        try:
            forward = engine.forward_overridden(planned.graph.batch, planned.mode, overrides)
            output = cloned(forward.output)
        except Exception as error:  # A reset may make the subject fail in any way.
            failed = (str(error).splitlines() or [type(error).__name__])[0]
    return RepeatedRun(output, list(calls), pair.graph_pools.storage.clone(), failed, forward)


@contextmanager
def calls_of(ops: Ops) -> Iterator[Calls]:
    """Keep the calls of an op set while entered."""
    calls: Calls = []
    ops.calls = calls
    try:
        yield calls
    finally:
        ops.calls = None


def both(tables: Tables) -> tuple[Tensor, Tensor]:
    """Return the index tables in the order of their numbers."""
    return tables.req_to_token, tables.full_to_swa_index_mapping


def copied(runner: GraphRunner | None) -> dict[str, Tensor]:
    """Return a runner's current static buffers, by name."""
    if runner is None:
        return {}
    return {name: buffer.clone() for name, buffer in runner.static_buffers().items()}
