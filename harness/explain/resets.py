"""What a repeated forward has instead of what it had, and the results of such a run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paritybit.harness.lockstep.bits import clone_output
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.reference.model import Output
from paritybit.reference.ops import OpCall, Ops
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.protocol import Forward, Overrides
from torch import Tensor

Calls = list[OpCall]

Given = Callable[[str, tuple[Any, ...]], tuple[Any, ...]]
"""Returns the arguments for an op, given its name and its original arguments."""

StaticElement = tuple[str, int, Tensor]
"""A static buffer's name, the flat index of an element, and its new value."""


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
    """The results of a forward of the graph run: its live output, its ops, and all KV after it.

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


def run(
    pair: Pair, engine: CapturedEngine, planned: PlannedStep, overrides: Overrides
) -> RepeatedRun:
    """Run a forward over the graph run's pools, and keep its results."""
    output: Output = {}
    failed, forward = None, None
    with calls_of(engine.ops) as calls:
        try:
            forward = engine.forward_overridden(planned.graph.batch, planned.mode, overrides)
            output = clone_output(forward.output)
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
