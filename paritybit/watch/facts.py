"""The facts that a connector reports about its engine. Data alone: a check reads nothing else.

A *slot* is the place of one token's K and V in the tensors of a group. Slot numbers are the
engine's own. A *position* is the index of a token in its request, from 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Layer:
    """The KV tensors of one layer, each [slots, ...]: the first axis is the slot.

    Where the group has a `block`, each is [slots / block, block, ...]: the first two axes are.
    """

    name: str
    tensors: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Group:
    """Layers that share slot numbers.

    A query at position p reads the positions from p - window + 1 to p; all, without a window.
    `reserved` are the slots that padding uses: they may hold anything. `block` is for engines
    whose blocks of slots do not follow one another in a tensor.
    """

    name: str
    layers: tuple[Layer, ...]
    window: int | None = None
    reserved: frozenset[int] = frozenset({0})
    page_size: int = 1
    block: int | None = None


@dataclass(frozen=True)
class Row:
    """One live row of a batch: a request, and what this forward reads and computes for it.

    `tokens` holds at least cached + computed ids. An id that the host does not know yet is None,
    as under overlap scheduling; the ledger names such a token by its request and position.
    `slots` gives, per group, the slot of each position from 0 to cached + computed - 1. A position
    that has no slot any more, as outside a sliding window, is -1. They are best on the host: what
    each row needs is then found without a call of a GPU per row.

    The last `spare` positions belong to the row, and need not be written.

    A row that `only_reads` computes no position. It reads the cached ones as a query after them
    does, as a draft that has no KV of its own.

    `space` names what KV depends on besides tokens, such as a LoRA adapter or a cache salt. Rows
    of different spaces never share KV. `window` overrides the group's: layers of several windows
    may share the slots of one group.

    Several rows of one request stand for the branches of a tree of draft tokens: they share the
    cached positions, and a slot that two branches share holds the same tokens in both.
    """

    request: str
    tokens: Sequence[int | None]
    cached: int
    computed: int
    slots: Mapping[str, torch.Tensor]
    space: str = ""
    spare: int = 0
    window: int | None = None
    only_reads: bool = False


@dataclass(frozen=True)
class Forward:
    """One forward pass: `kind` is the engine's word for it, such as decode or extend.

    `owned` gives, per group, the slots that the forward may write: None means the slots of the
    computed positions of its rows. A forward whose reads cannot be told has no rows and names
    `owned`; only its frame and its replays are then checked.

    `model` tells several models apart that compute for the same requests, as a draft does: each
    may know other tokens of them at a time.
    """

    kind: str
    rows: tuple[Row, ...]
    owned: Mapping[str, torch.Tensor] | None = None
    model: str = ""


@dataclass(frozen=True)
class IndexList:
    """Slots that an attention backend hands to its kernels, per row of the batch.

    Row r has `counts[r]` entries from `offsets[r]` on in the flat tensor `entries`; for a table
    of [rows, width] the offset is r * width. `page` > 1 means that an entry is a page number, and
    that a row lists one entry per page. A row lists its cached positions, and the first `computed`
    of those that it computes; None means all. The list of a draft's step takes the positions of
    the `step` steps before it for cached ones. `exact` means that the kernel reads each entry:
    entries before the window are then wrong. Otherwise the kernel masks the window itself.
    `window` overrides the group's window for this list: some kernels read fewer positions.
    The rows from `len(forward.rows)` on are padding.
    """

    name: str
    group: str
    entries: torch.Tensor
    offsets: torch.Tensor
    counts: torch.Tensor
    computed: int | None = None
    step: int = 0
    exact: bool = True
    page: int = 1
    source: str | None = None
    window: int | None = None


@dataclass
class StaticInput:
    """A tensor that a graph reads at a fixed address; a replay uses its first `live` entries.

    `live` and the padded length `size` count entries along axis `axis`. `valid` are the values
    that padding may hold, as a half-open range; None means that no other value is known to be
    valid, and the tail is then never overwritten. `source` is the file and line in the engine that
    fills it. `expected` are the values that the batch gives to the live part, on any device.
    `writes` is the group of which it holds the slots to write, if it does. `dtype` is the one that
    the engine's own code gives such values; None means that any dtype will do.
    """

    name: str
    tensor: torch.Tensor
    live: int
    size: int
    axis: int = 0
    valid: tuple[int, int] | None = None
    source: str | None = None
    expected: torch.Tensor | None = None
    writes: str | None = None
    dtype: torch.dtype | None = None


@dataclass
class Replay:
    """One replay of a captured graph.

    `graph` identifies the capture. `run` replays it and may be called again. `outputs` returns the
    live part of what it computed, by name. `eager` computes the same without the graph, if the
    engine can. `kind` is the engine's name for the runner. If not `repeatable`, the replay changes
    state other than KV and its inputs, or waits for other ranks: `run` is then called once.
    """

    graph: object
    kind: str
    rows: int
    bucket: int
    inputs: Sequence[StaticInput]
    run: Callable[[], object]
    outputs: Callable[[], Mapping[str, torch.Tensor]] = field(default=dict)
    eager: Callable[[], Mapping[str, torch.Tensor]] | None = None
    repeatable: bool = True
