"""What a subject must offer, whichever engine it is: all that the harness knows of an engine.

Our own engine and the adapters of engines that others wrote are implementations. What an
engine cannot offer it names, with the reason, so that a property that needs it is said not
to have been asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from paritybit.reference.allocator import Ownership
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output
from torch import Tensor

from paritybit.compat import StrEnum


class Offer(StrEnum):
    """What of an engine can be observed, and which work it takes.

    A property names what it needs; a scheduler plans no work that an engine does not take.
    """

    ARITHMETIC = "outputs and KV of the reference arithmetic, bit for bit"
    KV = "all KV, readable slot by slot"
    FRESH_ENGINE = "a freshly captured engine over the same KV"
    STATIC_INPUTS = "the dtypes and addresses of static inputs"
    GRAPHS = "which graphs were replayed"
    LOG = "what the engine logs"
    PYTHON_STATE = "its Python objects, and which of them a reset leaves changed"
    NOISE = "KV and static inputs that noise can be written to"
    LARGER_BUCKET = "replaying a batch in a larger bucket than it needs"
    IDLE_REPLAY = "replaying padded rows only"
    CROSS_ATTENTION = "requests with cross attention"
    TRACKED_STATE = "requests whose recurrent state is tracked"
    SECTIONS = "requests whose positions differ by section, as with images"
    TREES = "drafts that branch, verified as a tree"
    JOINT_PREFILL = "several requests prefilled in one forward"
    ALLOCATOR = "the owner of each slot, according to the engine's own allocator"
    READS = "the index lists from which each row reads KV"
    INPUTS = "the contents of its static inputs, under known names"


@dataclass(frozen=True)
class BufferFacts:
    """What a graph has recorded about a static buffer."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    address: int

    @classmethod
    def of(cls, buffer: Tensor) -> "BufferFacts":
        """Return the facts of `buffer` as it is now."""
        return cls(buffer.shape, buffer.dtype, buffer.device, buffer.data_ptr())

    def hold_of(self, buffer: Tensor) -> bool:
        """Whether `buffer` is now as these facts say."""
        return (
            self.address == buffer.data_ptr()
            and self.shape == buffer.shape
            and self.dtype == buffer.dtype
            and self.device == buffer.device
        )


Reads = Mapping[str, Sequence[Sequence[int]]]
"""Per sub-pool, the slots that each row of a replay was told to read, by its index lists."""


@dataclass(frozen=True)
class Keys:
    """The keys of R rows on layers of one kind: slots[begin[r]:end[r]] of a slot list.

    `begin` and `end` are [R]. `mask_start` int64 [R] says where in the forward's mask the bits
    of a row's keys begin; None where no mask applies.
    """

    begin: Tensor
    end: Tensor
    slots: Tensor
    mask_start: Tensor | None = None


@dataclass(frozen=True)
class KeyLists:
    """The keys of a forward on full layers (full slots) and on SWA layers (SWA slots).

    A row reads a key of its list where `mask` (bool [M]) is set, or every one where that is
    None. The rows are those that attend, padded ones after the live ones; of a draft, those of
    one forward after those of another.
    """

    full: Keys
    swa: Keys
    mask: Tensor | None = None


@dataclass(frozen=True)
class Replay:
    """One replay: how much of its bucket was live, in requests or tokens, and what it gave.

    `output` is static and holds the whole bucket; `live_rows` of its rows are live, and
    `live_output` is what the forward gives for them. Of `output`, `defined` depends on the
    batch alone. `reads` is empty where an engine's index lists are not seen; `keys` are those
    that it read KV by, None where they are not seen or it read none. `given` is what the batch
    brought for static inputs, by their names, which is what their live parts must hold; None of
    an engine whose static inputs the harness knows by name. `padding` is what they must hold
    behind it, as the engine promises: by name, from which element or row on, and the values.
    """

    runner: str
    bucket: int
    live_size: int
    padded: bool
    output: Output
    live_rows: int
    live_output: Output
    defined: Output
    reads: Reads = field(default_factory=dict)
    keys: KeyLists | None = None
    given: Mapping[str, Tensor] | None = None
    padding: Mapping[str, tuple[int, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Forward:
    """The outcome of one forward: what it gives for live rows, and the replay if there was one.

    `keys` are the index lists that it read KV by, None where they are not seen: the engine's
    own tensors, valid until its next forward. `padding` is what the padded part of static inputs
    held, by name, in a forward that was padded and yet ran eagerly.
    """

    output: Output
    replay: Replay | None
    keys: KeyLists | None = None
    padding: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LocationDtypes:
    """The dtype of the SWA write locations that a store is handed, and what it ought to be.

    `store` is None where the store reads locations of any dtype.
    """

    handed: torch.dtype
    translated: torch.dtype
    store: torch.dtype | None


@dataclass(frozen=True)
class GraphFacts:
    """What a replayed graph holds: translations found and expected, and attention or not.

    `operations` are the ops it called through the op interface, in order.
    """

    operations: Sequence[str]
    translations: int
    expected_translations: int
    holds_attention: bool
    expects_attention: bool


@dataclass(frozen=True)
class ReplayFacts:
    """What a replay relied on, as it was when it was captured and as it is now.

    `conversions` are dtype conversions on copy that are on no list: (buffer, from, to).
    `allocated` counts blocks that the CUDA allocator handed out around the replay.
    """

    captured_buffers: Mapping[str, BufferFacts] = field(default_factory=dict)
    buffers: Mapping[str, BufferFacts] = field(default_factory=dict)
    captured_outputs: Mapping[str, BufferFacts] = field(default_factory=dict)
    outputs: Mapping[str, BufferFacts] = field(default_factory=dict)
    locations: LocationDtypes | None = None
    conversions: Sequence[tuple[str, torch.dtype, torch.dtype]] = ()
    graph: GraphFacts | None = None
    allocated: int = 0


@dataclass(frozen=True)
class Overrides:
    """What a forward is to do otherwise, so that a cause can be told from a bystander.

    `elements` are (static buffer, element counted flat, value), written right before the
    launch: inputs before the metadata is planned from them, metadata after it. Without
    `captured`, the captured function runs eagerly through the same static buffers. With
    `largest`, a replay is one of the runner's largest bucket.
    """

    elements: tuple[tuple[str, int, Tensor], ...] = ()
    captured: bool = True
    largest: bool = False


@dataclass(frozen=True)
class OwnArithmetic:
    """What the dense oracle must know of an engine whose arithmetic is not the reference's.

    `windows` are the keys that a query of each mode sees on SWA layers, `bound` is the
    largest |logit - dense| / (1 + |dense|) that its rounding explains.
    """

    windows: Mapping[Mode, int]
    bound: float


@dataclass(frozen=True)
class PythonObjects:
    """An engine's Python objects, and what of them may differ once it has been reset.

    `root` is what to begin with; `packages` are those whose modules are its own. `declared` says
    why an attribute (`Class.attribute`), all objects of a class, or a module may differ;
    `changing` are tensors whose contents may.
    """

    root: object
    packages: frozenset[str]
    declared: Mapping[str, str]
    changing: Sequence[Tensor]


class EngineUnderTest(Protocol):
    """An engine over one world's KV: runs forwards by replay where a graph can, else eagerly.

    `missing` says what it cannot offer, and why. KV in the reference's layout and slot
    numbers lies in the world's storage: an engine that keeps KV elsewhere reads it from
    there and writes it there when it is asked to. `arithmetic` is None where it is the
    reference's own. `eager_modes` are those, besides prefills and decodes, whose batches it
    runs though nothing replays them.
    """

    missing: Mapping[Offer, str]
    eager_modes: frozenset[Mode]
    arithmetic: OwnArithmetic | None

    def reset(self) -> None:
        """Start again just captured: no request owns a slot, and KV is the world's storage."""
        ...

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward. `batch` None is an idle replay of `mode`: every row is padding."""
        ...

    def forward_overridden(
        self, batch: ForwardBatch | None, mode: Mode, overrides: Overrides
    ) -> Forward:
        """Run one forward by replay, with something of it done otherwise."""
        ...

    def runner_name(self, mode: Mode) -> str | None:
        """Return what replays batches of a mode, or None where nothing does."""
        ...

    def static_buffers(self, mode: Mode) -> Mapping[str, Tensor]:
        """Return every static buffer of the runner of a mode, by name; none without a runner."""
        ...

    def all_static_buffers(self) -> Sequence[Mapping[str, Tensor]]:
        """Return the static buffers of every runner."""
        ...

    def facts(self, replay: Replay) -> ReplayFacts:
        """Return what the replay that just ran relied on."""
        ...

    def capture_again(self) -> None:
        """Capture the graphs on trial again, while requests hold KV."""
        ...

    def recapture(self) -> None:
        """Give every static buffer, and the Python state, what they held after capture."""
        ...

    def python_objects(self) -> PythonObjects:
        """Return the Python objects that forwards may change, and what is declared of them."""
        ...

    def equalize_padding(self, mode: Mode, values: Mapping[str, int]) -> None:
        """Give the tails of buffers that padding keeps, or fills once, one valid value.

        `values` says which, by the name of a buffer; it is 0 where none is said. Padded rows are
        then equal, in both of two runs that are to be compared.
        """
        ...

    def state(self) -> Any:
        """Return the Python state that forwards change, static buffers apart."""
        ...

    def restore(self, state: Any) -> None:
        """Bring back a Python state."""
        ...

    def ownership_changed(self) -> None:
        """Follow a change of slot ownership: the world's allocator gave or took slots."""
        ...

    def ownership(self) -> Ownership | None:
        """Return who holds what by the engine's own tables; None where the world's are its own."""
        ...

    def read_kv(self) -> None:
        """Write the engine's KV to the world's storage, where it keeps KV elsewhere."""
        ...

    def write_kv(self) -> None:
        """Take the engine's KV from the world's storage, where it keeps KV elsewhere."""
        ...
