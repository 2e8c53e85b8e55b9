"""Everything observed about one step, for the checks to judge."""

from dataclasses import dataclass

from torch import Tensor

from harness.arms import Arms
from reference.batch import ForwardBatch
from subjects.decode import Replay


@dataclass(frozen=True)
class Before:
    """Pool storages of both worlds as they were before the step."""

    eager: Tensor
    graph: Tensor


@dataclass(frozen=True)
class Noisy:
    """What the step gave when nobody's bytes were noise: live logits, and storage.

    `owned` is a bool tensor of the storage's layout: true where a request of the batch owns.
    """

    logits: Tensor
    storage: Tensor
    owned: Tensor


@dataclass(frozen=True)
class Variant:
    """The logits [vocab] of live row `row` under another batching of the same step."""

    told: str
    row: int
    logits: Tensor


@dataclass
class Probed:
    """What further runs of the step gave, where they were asked for.

    `fresh_output` is the static output of the just-captured twin.
    """

    fresh_output: Tensor | None = None
    noisy: Noisy | None = None
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One step. `batch` is the graph world's, `eager_batch` the eager one's; None if idle.

    Logits are [raw_bs, vocab], None for an idle step. `allocated` counts blocks the CUDA
    allocator handed out around the replay. `expected_graph` says whether a captured
    graph could have run the step.
    """

    arms: Arms
    step: int
    batch: ForwardBatch | None
    eager_batch: ForwardBatch | None
    before: Before
    eager_logits: Tensor | None
    graph_logits: Tensor | None
    replay: Replay | None
    expected_graph: bool
    probed: Probed
    allocated: int
    warnings: tuple[str, ...]
