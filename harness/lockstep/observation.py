"""What was observed of one step, as data: the checks see nothing else.

An observation holds tensors, tables and owners, and no world. Its storages are the pair's own
snapshots: they are valid until the pair's next step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paritybit.harness.lockstep.requests import owner_of, owner_of_place, serial_at
from paritybit.harness.lockstep.scale.kept import Compared
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.allocator import Owner, Ownership
from paritybit.reference.batch import ForwardBatch, Mode, Span
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.reference.pool import KVLayout, PoolSizes
from paritybit.reference.state_pool import Section
from paritybit.subjects.protocol import KeyLists, OwnArithmetic, Replay, ReplayFacts
from torch import Tensor


@dataclass(frozen=True)
class Snapshot:
    """One world around its forward: all KV and other state before and after it, its tables.

    `before` and `after` are empty for pools too large to be copied: see `Observation.twins`.
    `mapping` is as the forward found it. `batch` and `output`, that of live rows, are None for an
    idle step. `owners` are the running requests.
    """

    before: Tensor
    after: Tensor
    mapping: Tensor
    owners: tuple[Owner, ...]
    batch: ForwardBatch | None
    output: Output | None

    @property
    def spans(self) -> tuple[Span, ...]:
        """What the batch runs; nothing if the step is idle."""
        return self.batch.spans if self.batch is not None else ()

    def serial_at(self, row: int) -> int:
        """Return the request at `row` of req_to_token."""
        return serial_at(row, self.owners)

    def owner_of(self, kind: Kind, slot: int) -> str:
        """Say in words whose slot it is, what is being written included."""
        return owner_of(kind, slot, self.spans, self.owners)

    def owner_of_place(self, section: Section, place: int) -> str:
        """Say in words whose place of a section of state beside KV it is."""
        return owner_of_place(section, place, self.owners)


@dataclass(frozen=True)
class Sample:
    """The logits [vocab] after a request's first tokens, int64 [L], which were in the pool.

    Of a draft model, the tokens run one ahead and `hidden_states` [L, H] go with them.
    `tracked` says whether its recurrent state enters its input, `lora_id` which adapter it has.
    `arithmetic` is that of the engine that gave the logits, None for the eager world's.
    The first `prefilled` tokens were prefilled. `place` is that of the step in its schedule.
    """

    serial: int
    tokens: Tensor
    logits: Tensor
    tracked: bool
    mrope_delta: int
    encoder_len: int
    prefilled: int
    hidden_states: Tensor | None = None
    lora_id: int = 0
    arithmetic: OwnArithmetic | None = None
    place: int = 0

    @property
    def of_draft(self) -> bool:
        """Whether the draft model gave the logits."""
        return self.hidden_states is not None


@dataclass(frozen=True)
class StepEnd:
    """What a step left to both worlds, whether it ran a forward or none.

    `place` is the step's in its schedule, `sizes` are those of either world's pools.
    """

    place: int
    sizes: PoolSizes
    eager: Ownership
    graph: Ownership


@dataclass(frozen=True)
class Observation:
    """One step of both worlds.

    `place` is the step's in its schedule. `compared` is a bool tensor of the storages' layout:
    false where no bit is compared. `replay` and `facts` are of the graph world, None where no
    graph was replayed; `expected_graph` says whether a captured graph could have run the step.
    `end` is what the step left once both worlds had followed what it gave, None where no world
    was played. `keys` are the index
    lists that the graph world's forward read by, None where they are not seen; `static` are the
    static buffers of the mode's runner, by name, as the replay left them; `payload` [T, H] is
    what an extend adds to its embeddings. All three are valid until the pair's next step.
    `padding` is what padded tokens held in a forward that ran eagerly, by static input.
    `extra` holds what further runs of the step gave, by the property that asked for them.
    `warnings` are what the step logged at WARNING or above. `samples` are empty unless asked for.
    `twins` says how the worlds' KV came out of the step where no copy of it is kept.
    """

    place: int
    step: Step
    mode: Mode
    under_test: str
    layout: KVLayout
    compared: Tensor
    eager: Snapshot
    graph: Snapshot
    replay: Replay | None
    facts: ReplayFacts | None
    expected_graph: bool
    end: StepEnd | None = None
    keys: KeyLists | None = None
    static: Mapping[str, Tensor] = field(default_factory=dict)
    payload: Tensor | None = None
    padding: Mapping[str, Tensor] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    twins: Compared | None = None
