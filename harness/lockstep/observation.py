"""Observations. An observation has all data about one step, and is the only input of checks.

Its storages are snapshots that belong to the pair. They are valid until the pair's next step. A
storage has KV and recurrent states.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paritybit.harness.lockstep.bits import unequal
from paritybit.harness.lockstep.requests import SlotOwners
from paritybit.reference.allocator import Owner, Ownership
from paritybit.reference.batch import ForwardBatch, Mode, RequestSpan
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.reference.pool import KVLayout, PoolSizes
from paritybit.subjects.protocol import KeyLists, ReplayFacts, ReplayResult
from torch import Tensor

from paritybit.compat import override


@dataclass(frozen=True)
class RunSnapshot(SlotOwners):
    """One run before and after its forward.

    - `before`, `after`: KV and recurrent states.
    - `mapping`: the full-to-SWA mapping right before the forward.
    - `owners`: the running requests.
    - `batch`, `output`: the batch and its live output. None for an idle step.
    """

    before: Tensor
    after: Tensor
    mapping: Tensor
    owners: tuple[Owner, ...]
    batch: ForwardBatch | None
    output: Output | None

    @property
    @override
    def spans(self) -> tuple[RequestSpan, ...]:
        return self.batch.spans if self.batch is not None else ()


class StepChanges:
    """What a step changed, as masks in the storages' layout. Each is computed at most once.

    `differing` are the compared elements that differ between the runs after the step.
    """

    def __init__(self, observation: "Observation") -> None:
        self._observation = observation
        self._outside: dict[str, Tensor] = {}
        eager, graph = observation.eager.after, observation.graph.after
        self.differing = unequal(eager, graph).logical_and_(observation.compared)

    def outside_frame(self, run: str) -> Tensor:
        """Return which elements the eager or the graph run wrote outside the step's frame.

        The frame is the slots of out_cache_loc in the pool of the writing model, and the state of
        the batch's requests that the mode writes. Padded rows may write to reserved slots and
        places, but a draft over frozen KV writes no KV at all.
        """
        if run not in self._outside:
            self._outside[run] = self._changed_outside(getattr(self._observation, run))
        return self._outside[run]

    def _changed_outside(self, side: RunSnapshot) -> Tensor:
        layout, mode = self._observation.layout, self._observation.mode
        changed = unequal(side.after, side.before)
        if side.batch is not None and mode.written is not None:
            full = side.batch.out_cache_loc
            for kind, slots in ((Kind.FULL, full), (Kind.SWA, side.mapping[full])):
                arena = layout.arena_of(changed, mode.written, kind)
                arena.index_fill_(2, slots, value=False)
        states = layout.states_of(changed)
        if side.batch is not None and mode.advances_states:
            # A verify writes the states after its tokens, and not the request's own.
            rows = slice(1, None) if mode is Mode.TARGET_VERIFY else slice(1)
            slots = side.batch.mamba_track_indices
            states[:, rows].index_fill_(0, slots, value=False)
        if mode is not Mode.FROZEN_DRAFT:
            return changed.logical_and_(self._observation.compared)
        states[0] = False
        return changed


@dataclass(frozen=True)
class Sample:
    """The logits [vocab] after the first tokens, int64 [L], of one request.

    - `hidden_states`: [L, H] for a draft model, whose tokens are shifted by one. Else None.
    - `index`: the index of the step in its schedule.
    """

    serial: int
    tokens: Tensor
    logits: Tensor
    hidden_states: Tensor | None = None
    index: int = 0

    @property
    def of_draft(self) -> bool:
        """Whether the draft model gave the logits."""
        return self.hidden_states is not None


@dataclass(frozen=True)
class StepEnd:
    """The owners in both runs after step number `index`, with or without a forward."""

    index: int
    sizes: PoolSizes
    eager: Ownership
    graph: Ownership


@dataclass(frozen=True)
class Observation:
    """One step in both runs.

    - `index`: the index of the step in its schedule.
    - `compared`: mask in the storages' layout. False for elements that are not compared.
    - `replay`, `facts`: of the graph run. None if no graph was replayed.
    - `expected_graph`: whether a captured graph must run the step.
    - `end`: the owners after the step.
    - `keys`: the key lists of the graph run's forward. None if it read none.
    - `static`: the static buffers of the runner after the replay, by name.
    - `payload`: [T, H], added to the embeddings in an extend.
    - `extra`: results of extra runs, by the property that asked for them.
    - `warnings`: messages at WARNING or above that the step logged.
    - `samples`: empty unless asked for.

    `keys`, `static` and `payload` are valid until the pair's next step.
    """

    index: int
    mode: Mode
    under_test: str
    layout: KVLayout
    compared: Tensor
    eager: RunSnapshot
    graph: RunSnapshot
    replay: ReplayResult | None
    facts: ReplayFacts | None
    expected_graph: bool
    end: StepEnd
    keys: KeyLists | None = None
    static: Mapping[str, Tensor] = field(default_factory=dict)
    payload: Tensor | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()

    @cached_property
    def changes(self) -> StepChanges:
        """What the step changed."""
        return StepChanges(self)
