"""The engine under test: the built-in engine, and a reset to its state after capture."""

import gc
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind, Role
from paritybit.reference.model import Model
from paritybit.reference.ops import Ops
from paritybit.reference.pool import LOC_DTYPE, KVPools
from paritybit.subjects.contracts import LISTED_CONVERSIONS, Policy
from paritybit.subjects.engine import Engine, Subject, contract
from paritybit.subjects.graphs.counting import CountingGraph
from paritybit.subjects.graphs.protocol import Graph
from paritybit.subjects.pool import TRANSLATE
from paritybit.subjects.protocol import (
    BufferFacts,
    Forward,
    GraphFacts,
    LocationDtypes,
    Overrides,
    Replay,
    ReplayFacts,
)
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor


class CapturedEngine:
    """The engine under test. It keeps its state after capture, and `reset` restores it.

    It runs forwards by replay if a graph exists, else eagerly. Its KV is the storage of `pools`, in
    the reference's layout and slot numbers.

    - `pools`: the graph run's pools, which hold its KV.
    - `records_ops`: graphs keep the inputs and outputs of their ops.
    - `replayed`: the counting graphs that the last forward replayed, once for each replay.
    - `modes`: the modes whose runners are captured at once. `capture` captures others.
    - `capturing`: returns a context for each capture.
    - `capturing_seconds`: the CPU seconds of all captures so far.
    """

    def __init__(
        self,
        ops: Ops,
        models: Mapping[Role, Model],
        pools: KVPools,
        subject: Subject,
        buckets: tuple[int, ...],
        token_buckets: tuple[int, ...],
        logger: logging.Logger,
        *,
        records_ops: bool,
        modes: Collection[Mode] = frozenset(Mode),
        capturing: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.ops = ops
        self.scheme = subject.toggles.scheme
        self.records_ops = records_ops
        self.counts = False
        self.replayed: list[Graph] = []
        self.capturing_seconds = 0.0
        self._capturing = capturing
        self.buffers: dict[tuple[str, int], dict[str, BufferFacts]] = {}
        self.outputs: dict[tuple[str, int], dict[str, BufferFacts]] = {}
        self.engine = Engine(ops, models, pools, subject, buckets, token_buckets, logger)
        self.runners = self.engine.runners
        self._by_name = {runner.name: runner for runner in self.runners.values()}
        self._capture(modes)
        self.translated_dtype = self._translated_dtype()
        self._kept = {mode: self._kept_buffers(runner) for mode, runner in self.runners.items()}

    def lacks(self, modes: Collection[Mode]) -> frozenset[Mode]:
        """Return the modes whose runner is not captured yet."""
        return frozenset(self.runners).intersection(modes) - self.engine.captured

    def capture(self, modes: Collection[Mode]) -> None:
        """Capture the missing runners of some modes. This also resets the engine."""
        if self.lacks(modes):
            self.reset()
            self._capture(modes)

    def _capture(self, modes: Collection[Mode]) -> None:
        """Capture, and keep the state of the engine."""
        started = time.process_time()
        self._capture_by(partial(self.engine.capture, modes, self._keep_facts))
        self._states = self.state()
        self._captured = [
            (alike, [buffer.clone() for buffer in alike])
            for alike in grouped(whole_storages(self.all_static_buffers()))
        ]
        self.capturing_seconds += time.process_time() - started

    def _capture_by(self, capture: Callable[[], None]) -> None:
        """Capture, and prepare what is asked about graphs."""
        self.ops.calls = [] if self.records_ops else None
        with without_collector(), self._capturing():
            capture()
        self.ops.calls = None
        if self.counts:
            self.count_allocations()

    def _keep_facts(self, runner: GraphRunner) -> None:
        """Keep the facts about the static buffers and outputs that a runner just captured.

        A later capture may move them, of this runner too. The graphs still read them where they
        were.
        """
        now = facts_of(runner.static_buffers())
        buffers = {(runner.name, bucket): now for bucket in runner.buckets}
        self.buffers = {**self.buffers, **buffers}
        outputs = {
            (runner.name, bucket): facts_of(captured.output)
            for bucket, captured in runner.captured.items()
        }
        self.outputs = {**self.outputs, **outputs}

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward, by replay if a graph can run it, else eagerly.

        If `batch` is None, replay `mode` with padded rows only.
        """
        self.replayed.clear()
        return self.engine.forward(batch, mode)

    def forward_overridden(
        self, batch: ForwardBatch | None, mode: Mode, overrides: Overrides
    ) -> Forward:
        """Run one forward by replay with overrides.

        With `overrides.largest` the runner replays even if the engine would run eagerly.
        """
        self.replayed.clear()
        if not overrides.largest:
            return self.engine.forward(batch, mode, overrides)
        replay = self.runners[mode].replay(batch, overrides)
        return Forward(replay.live_output, replay, replay.keys)

    def runner_name(self, mode: Mode) -> str | None:
        """Return the name of the runner of a mode, or None."""
        runner = self.runners.get(mode)
        return None if runner is None else runner.name

    def static_buffers(self, mode: Mode) -> Mapping[str, Tensor]:
        """Return the static buffers of the runner of a mode, by name. Empty without a runner."""
        runner = self.runners.get(mode)
        return {} if runner is None else runner.static_buffers()

    def all_static_buffers(self) -> Sequence[Mapping[str, Tensor]]:
        """Return the static buffers of each runner."""
        return [runner.static_buffers() for runner in self.runners.values()]

    def facts(self, replay: Replay) -> ReplayFacts:
        """Return what the last replay relied on: buffers, outputs, dtypes, ops and allocations."""
        runner = self._by_name[replay.runner]
        buffers, captured = runner.static_buffers(), self.buffers[runner.name, replay.bucket]
        outputs = self.outputs.get((runner.name, replay.bucket), {})
        operations = runner.operations(replay.bucket)
        locations = buffers.get("out_cache_loc_swa")
        graphs = runner.graphs(replay.bucket)
        counted = [one for one in graphs if isinstance(one, CountingGraph)]
        return ReplayFacts(
            captured_buffers=captured,
            buffers=facts_since(captured, buffers),
            captured_outputs=outputs,
            outputs=facts_since(outputs, replay.output) if runner.captures else {},
            locations=None
            if locations is None
            else LocationDtypes(locations.dtype, self.translated_dtype, LOC_DTYPE[Kind.SWA]),
            conversions=sorted(runner.conversions - LISTED_CONVERSIONS, key=str),
            graph=GraphFacts(
                operations=operations,
                translations=operations.count(TRANSLATE),
                expected_translations=runner.translations(self.scheme),
                holds_attention="attention" in operations,
                expects_attention=runner.attention_captured,
            ),
            allocated=sum(graph.allocated for graph in counted),
            replays=[self.replayed.count(graph) for graph in graphs],
        )

    def reset(self) -> None:
        """Restore static buffers and Python state to their contents after capture."""
        for buffers, captured in self._captured:
            torch._foreach_copy_(buffers, captured)
        self.restore(self._states)
        for runner in self.runners.values():
            runner.forget_conversions()

    def equalize_padding(self, mode: Mode, values: Mapping[str, int]) -> None:
        """Fill the KEEP and FILL_ONCE buffers of a runner with `values`, by name. The default is 0.

        The policies are those of the correct contract, so the padded rows of two runs are equal and
        can be compared.
        """
        for name, buffer in self._kept.get(mode, {}).items():
            buffer.fill_(values.get(name, 0))

    def state(self) -> Any:
        """Return the Python state that forwards change, without static buffers.

        It has the locations of pools, the state of runners, graphs and facts.
        """
        return {
            "pools": {role: pool.state for role, pool in self.engine.pools.items()},
            "runners": {mode: runner.state for mode, runner in self.runners.items()},
            "facts": (self.buffers, self.outputs),
        }

    def restore(self, state: Any) -> None:
        """Restore a Python state."""
        for role, pool in self.engine.pools.items():
            pool.state = state["pools"][role]
        for mode, runner in self.runners.items():
            runner.state = state["runners"][mode]
        self.buffers, self.outputs = state["facts"]

    def ownership_changed(self) -> None:
        """Report a change of slot owners to the pool, as the engine's allocator does."""
        self.engine.allocator_changed()

    def count_allocations(self) -> None:
        """Count the allocator's blocks during each replay from now on."""
        self.counts = True
        for runner in self.runners.values():
            for captured in runner.captured.values():
                captured.segments = [
                    graph
                    if isinstance(graph, CountingGraph)
                    else CountingGraph(graph, self.replayed)
                    for graph in captured.segments
                ]

    def _kept_buffers(self, runner: GraphRunner) -> dict[str, Tensor]:
        """Return the buffers that the runner's correct contract does not reset, by name."""
        return {
            row.name: runner.inputs.buffers[row.name]
            for row in contract(RUNNERS[runner.name], self.scheme)
            if row.policy is not Policy.RESET
        }

    def _translated_dtype(self) -> torch.dtype:
        """Return the dtype of the pool's translation.

        It leaves a memo in the pool, which the next reset clears.
        """
        pool = self.engine.pools[Role.TARGET]
        pool.invalidate_loc_cache()
        loc = torch.zeros(1, dtype=torch.int64, device=pool.pool.device)
        return pool.translate_loc_from_full_to_swa(loc).dtype


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector in this context. A capture creates many permanent objects."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def facts_of(buffers: Mapping[str, Tensor]) -> dict[str, BufferFacts]:
    """Return the facts about buffers, by name."""
    return {name: BufferFacts.of(buffer) for name, buffer in buffers.items()}


def facts_since(
    captured: Mapping[str, BufferFacts], buffers: Mapping[str, Tensor]
) -> dict[str, BufferFacts]:
    """Return the facts about buffers, by name, reusing those of the capture if they still hold."""
    return {
        name: facts
        if (facts := captured.get(name)) and facts.hold_of(buffer)
        else BufferFacts.of(buffer)
        for name, buffer in buffers.items()
    }


def grouped(buffers: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group buffers by dtype and device. One call can copy a group."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for buffer in buffers:
        groups.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    return list(groups.values())


def whole_storages(runners: Iterable[Mapping[str, Tensor]]) -> list[Tensor]:
    """Return each distinct storage of the runners' buffers as a flat tensor."""
    found: dict[int, Tensor] = {}
    for buffer in (buffer for buffers in runners for buffer in buffers.values()):
        flat = buffer.view(-1)
        known = found.get(buffer.data_ptr())
        if known is None or known.numel() < flat.numel():
            found[buffer.data_ptr()] = flat
    return list(found.values())
