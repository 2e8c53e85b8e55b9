"""Our own engine as the harness takes it: with a record of how it was when just captured."""

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
from paritybit.subjects.graphs.protocol import Graph
from paritybit.subjects.parts import Part
from paritybit.subjects.pool import TRANSLATE
from paritybit.subjects.protocol import (
    BufferFacts,
    Forward,
    GraphFacts,
    LocationDtypes,
    Offer,
    Overrides,
    OwnArithmetic,
    PythonObjects,
    Replay,
    ReplayFacts,
)
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor

DECLARED = {
    "BufferFacts": "what graphs read and write; a reset brings the first graphs back",
    "CountingGraph": "recorded graph contents, and a counter used by the harness",
    "TapeSegment": "recorded graph contents",
    "CudaSegment": "recorded graph contents",
    "StaticInputs.conversions": "cleared by a reset, created by a capture",
    "StaticLists.conversions": "cleared by a reset, created by a capture",
    "LocState.cached_loc": "the memo, stored in the memory of the graph that created it",
    "LocState.cached_source": "the source of the memo, stored in graph memory too",
    "CpuGraphRunner.listed": "the key lists of the last forward, rebuilt by each forward",
    "Kernel.compiled": "compiled kernels; they depend on the machine, not on any request",
    "Capture.breaks": "data passed from one graph segment to the next",
    "SegmentCalls": "graph data that explanations read",
}
"""What of our engine's Python objects may differ after a reset, and why."""


class CountingGraph:
    """A graph that counts the blocks the CUDA allocator hands out around its replays."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.operations = graph.operations
        self.allocated = 0

    def replay(self) -> None:
        """Replay the graph and count."""
        before = allocations()
        self.graph.replay()
        self.allocated = allocations() - before


class CapturedEngine:
    """An engine under test that keeps what it was when its graphs had just been captured.

    Its KV lies in `pools`, so that there is nothing to read or to write elsewhere. With
    `records_ops`, graphs keep what each of their ops was given and gave. The runners of `modes`
    are captured at once, others by `capture`; each capture runs inside a `capturing()`, and
    `capturing_seconds` is what they have taken of the CPU.
    """

    missing: Mapping[Offer, str] = {}
    eager_modes: frozenset[Mode] = frozenset()
    arithmetic: OwnArithmetic | None = None

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
        self.capturing_seconds = 0.0
        self._capturing = capturing
        engine = subject.parts.of(Part.ENGINE, Engine)
        self.engine = engine(ops, models, pools, subject, buckets, token_buckets, logger)
        self.runners = self.engine.runners
        self._by_name = {runner.name: runner for runner in self.runners.values()}
        self._capture(modes)
        self.translated_dtype = self._translated_dtype()
        self._kept = {mode: self._kept_buffers(runner) for mode, runner in self.runners.items()}

    def lacks(self, modes: Collection[Mode]) -> frozenset[Mode]:
        """Return those of some modes whose runner is not captured yet."""
        return frozenset(self.runners).intersection(modes) - self.engine.captured

    def capture(self, modes: Collection[Mode]) -> None:
        """Capture the runners of some modes that are not yet; the engine is then just captured."""
        if self.lacks(modes):
            self.recapture()
            self._capture(modes)

    def _capture(self, modes: Collection[Mode]) -> None:
        """Capture, and keep what the engine is now."""
        started = time.process_time()
        self._capture_by(partial(self.engine.capture, modes))
        self._states = self.state()
        self._captured = [
            (alike, [buffer.clone() for buffer in alike])
            for alike in grouped(whole_storages(self.all_static_buffers()))
        ]
        self.capturing_seconds += time.process_time() - started

    def _capture_by(self, capture: Callable[[], None]) -> None:
        """Capture, and keep the facts of what graphs read and write."""
        self.ops.calls = [] if self.records_ops else None
        with uncollected(), self._capturing():
            capture()
        self.ops.calls = None
        if self.counts:
            self.count_allocations()
        self.buffers = {
            runner.name: facts_of(runner.static_buffers()) for runner in self.runners.values()
        }
        self.outputs = {
            (runner.name, bucket): facts_of(captured.output)
            for runner in self.runners.values()
            for bucket, captured in runner.captured.items()
        }

    def reset(self) -> None:
        """Start again just captured: who owns what stands in the world's tables alone."""
        self.recapture()

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward by replay where a graph can, else eagerly."""
        return self.engine.forward(batch, mode)

    def forward_overridden(
        self, batch: ForwardBatch | None, mode: Mode, overrides: Overrides
    ) -> Forward:
        """Run one forward by replay, with something of it done otherwise.

        In its largest bucket a runner replays whatever the engine would choose.
        """
        if not overrides.largest:
            return self.engine.forward(batch, mode, overrides)
        replay = self.runners[mode].replay(batch, overrides)
        return Forward(replay.live_output, replay, replay.keys)

    def runner_name(self, mode: Mode) -> str | None:
        """Return what replays batches of a mode, or None where nothing does."""
        runner = self.runners.get(mode)
        return None if runner is None else runner.name

    def static_buffers(self, mode: Mode) -> Mapping[str, Tensor]:
        """Return every static buffer of the runner of a mode, by name; none without a runner."""
        runner = self.runners.get(mode)
        return {} if runner is None else runner.static_buffers()

    def all_static_buffers(self) -> Sequence[Mapping[str, Tensor]]:
        """Return the static buffers of every runner."""
        return [runner.static_buffers() for runner in self.runners.values()]

    def facts(self, replay: Replay) -> ReplayFacts:
        """Return what the replay that just ran relied on."""
        runner = self._by_name[replay.runner]
        buffers = runner.static_buffers()
        outputs = self.outputs.get((runner.name, replay.bucket), {})
        operations = runner.operations(replay.bucket)
        locations = buffers.get("out_cache_loc_swa")
        graphs = runner.graphs(replay.bucket)
        return ReplayFacts(
            captured_buffers=self.buffers[runner.name],
            buffers=facts_since(self.buffers[runner.name], buffers),
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
            allocated=sum(g.allocated for g in graphs if isinstance(g, CountingGraph)),
        )

    def capture_again(self) -> None:
        """Capture the runner under test again; a reset brings the first graphs back."""
        self._capture_by(self.engine.capture_again)

    def recapture(self) -> None:
        """Give every static buffer, and the Python state, what they held after capture."""
        for buffers, captured in self._captured:
            torch._foreach_copy_(buffers, captured)
        self.restore(self._states)
        for runner in self.runners.values():
            runner.forget_conversions()

    def python_objects(self) -> PythonObjects:
        """Return the engine's Python objects, and what is declared of them."""
        pools = self.engine.pools[Role.TARGET].pool
        outputs = [
            values
            for runner in self.runners.values()
            for captured in runner.captured.values()
            for values in captured.output.values()
        ]
        return PythonObjects(
            root=self,
            packages=frozenset({"paritybit.subjects", "paritybit.reference"}),
            declared=DECLARED,
            changing=[pools.storage, pools.full_to_swa_index_mapping, pools.req_to_token, *outputs],
        )

    def equalize_padding(self, mode: Mode, values: Mapping[str, int]) -> None:
        """Give the tails of KEEP and FILL_ONCE buffers the value of their name, 0 if there is none.

        By the right contract, not the subject's: padded rows are then equal in both of two runs.
        """
        for name, buffer in self._kept.get(mode, {}).items():
            buffer.fill_(values.get(name, 0))

    def state(self) -> Any:
        """Return the Python state about write locations of every pool, and every runner's own.

        The graphs are part of it, and the facts of what they read and write.
        """
        return {
            "pools": {role: pool.state for role, pool in self.engine.pools.items()},
            "runners": {mode: runner.state for mode, runner in self.runners.items()},
            "graphs": {mode: runner.graphs_held for mode, runner in self.runners.items()},
            "facts": (self.buffers, self.outputs),
        }

    def restore(self, state: Any) -> None:
        """Bring back a Python state."""
        for role, pool in self.engine.pools.items():
            pool.state = state["pools"][role]
        for mode, runner in self.runners.items():
            runner.graphs_held = state["graphs"][mode]
            runner.state = state["runners"][mode]
        self.buffers, self.outputs = state["facts"]

    def ownership(self) -> None:
        """Return nothing: the world's tables are its own."""

    def ownership_changed(self) -> None:
        """Follow a change of slot ownership, as the engine's allocator reports it to the pool."""
        self.engine.allocator_changed()

    def read_kv(self) -> None:
        """Do nothing: the engine's KV lies in the world's storage."""

    def write_kv(self) -> None:
        """Do nothing: the engine's KV lies in the world's storage."""

    def count_allocations(self) -> None:
        """Count the allocator's blocks around every graph's replay from now on."""
        self.counts = True
        for runner in self.runners.values():
            for captured in runner.captured.values():
                captured.segments = [
                    graph if isinstance(graph, CountingGraph) else CountingGraph(graph)
                    for graph in captured.segments
                ]

    def _kept_buffers(self, runner: GraphRunner) -> dict[str, Tensor]:
        """Return what the runner's right contract does not reset, by name."""
        return {
            row.name: runner.inputs.buffers[row.name]
            for row in contract(RUNNERS[runner.name], self.scheme)
            if row.policy is not Policy.RESET
        }

    def _translated_dtype(self) -> torch.dtype:
        """Return the dtype that the pool's own translation returns."""
        pool = self.engine.pools[Role.TARGET]
        pool.invalidate_loc_cache()
        loc = torch.zeros(1, dtype=torch.int64, device=pool.pool.device)
        dtype = pool.translate_loc_from_full_to_swa(loc).dtype
        self.restore(self._states)
        return dtype


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage until the end: what is captured meanwhile stays, and there is much."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def facts_of(buffers: Mapping[str, Tensor]) -> dict[str, BufferFacts]:
    """Return the facts of some buffers, by name."""
    return {name: BufferFacts.of(buffer) for name, buffer in buffers.items()}


def facts_since(
    captured: Mapping[str, BufferFacts], buffers: Mapping[str, Tensor]
) -> dict[str, BufferFacts]:
    """Return the facts of some buffers, by name: those of the capture where they still hold."""
    return {
        name: facts
        if (facts := captured.get(name)) is not None and facts.hold_of(buffer)
        else BufferFacts.of(buffer)
        for name, buffer in buffers.items()
    }


def grouped(buffers: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return the buffers in groups of one dtype and device, which one call copies together."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for buffer in buffers:
        groups.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    return list(groups.values())


def whole_storages(runners: Iterable[Mapping[str, Tensor]]) -> list[Tensor]:
    """Return each storage under the buffers of all runners once, flat: buffers may be shared."""
    found: dict[int, Tensor] = {}
    for buffer in (buffer for buffers in runners for buffer in buffers.values()):
        flat = buffer.view(-1)
        known = found.get(buffer.data_ptr())
        if known is None or known.numel() < flat.numel():
            found[buffer.data_ptr()] = flat
    return list(found.values())


def allocations() -> int:
    """Return how many blocks the CUDA caching allocator has handed out so far."""
    if not torch.cuda.is_initialized():
        return 0
    stats = torch.cuda.memory.memory_stats_as_nested_dict()
    return int(stats["allocation"]["all"]["allocated"])
