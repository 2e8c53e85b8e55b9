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
    def differing(self) -> Tensor:
        """Mask of the compared elements that differ between the runs after the step."""
        return unequal(self.eager.after, self.graph.after).logical_and_(self.compared)
