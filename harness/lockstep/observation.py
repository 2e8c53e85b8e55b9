"""Everything observed about one step, for the checks to judge."""

from dataclasses import dataclass

from torch import Tensor

from harness.lockstep.pair import Pair
from reference.batch import ForwardBatch, Mode
from reference.model import Output
from subjects.runners.base import Replay


@dataclass(frozen=True)
class Before:
    """Pool storages of both worlds as they were before the step."""

    eager: Tensor
    graph: Tensor


@dataclass(frozen=True)
class Noisy:
    """What the step gave for live rows when nobody's bytes were noise, and storage.

    `owned` is a bool tensor of the storage's layout: true where a request of the batch owns.
    """

    output: Output
    storage: Tensor
    owned: Tensor


@dataclass(frozen=True)
class Variant:
    """What the step gives under another batching: requests `order` of it, in that order."""

    message: str
    order: tuple[int, ...]
    output: Output


@dataclass
class ExtraResults:
    """What further runs of the step gave, where they were asked for.

    `fresh_output` is what is defined of the just-captured twin's static output.
    """

    fresh_output: Output | None = None
    noisy: Noisy | None = None
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True)
class Observation:
    """One step. `batch` is the graph world's, `eager_batch` the eager one's; None if idle.

    Outputs are those of live rows, None for an idle step. `allocated` counts blocks the CUDA
    allocator handed out around the replay. `expected_graph` says whether a captured
    graph could have run the step.
    """

    pair: Pair
    step: int
    mode: Mode
    batch: ForwardBatch | None
    eager_batch: ForwardBatch | None
    before: Before
    eager_output: Output | None
    graph_output: Output | None
    replay: Replay | None
    expected_graph: bool
    extra: ExtraResults
    allocated: int
    warnings: tuple[str, ...]
