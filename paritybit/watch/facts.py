"""The facts that a connector reports about its engine. Checks use no other input.

A *slot* is the storage of one token's K and V in the tensors of a group. Slot numbers are those of
the engine. A *position* is the index of a token in its request, starting at 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch

ELSEWHERE = -2
"""Stands for a slot in another rank."""


@dataclass(frozen=True)
class Chunks:
    """The window of attention in chunks: a query sees the positions from its chunk's start on."""

    size: int


Window = int | Chunks
"""Which positions a query at position p sees: those from p - window + 1 to p, or Chunks."""


def first_seen(window: Window | None, position: int, slack: int = 0) -> int:
    """Return the first position that the query of a position sees.

    Some kernels leave out the oldest key of a window. With a `slack`, a window that moves with the
    query has so many keys less.
    """
    if window is None:
        return 0
    if isinstance(window, Chunks):
        return position // window.size * window.size
    return max(0, position - window + 1 + slack)


@dataclass(frozen=True)
class Layer:
    """The KV tensors of one layer.

    Each has shape [slots, ...], or [slots / block, block, ...] if the group has a `block`. The
    layer may have a smaller `window` than its group.
    """

    name: str
    tensors: tuple[torch.Tensor, ...]
    window: Window | None = None


@dataclass(frozen=True)
class Group:
    """Layers that share slot numbers, in the order in which a forward computes them.

    - `window`: the positions that a query at position p reads. None means all up to p.
    - `reserved`: the slots that padding uses. They may have any content.
    - `page_size`: the number of slots in a page. Pages are allocated and freed as a whole.
    - `block`: the number of slots in a block, if the blocks of a tensor are not contiguous.
    """

    name: str
    layers: tuple[Layer, ...]
    window: Window | None = None
    reserved: frozenset[int] = frozenset({0})
    page_size: int = 1
    block: int | None = None


@dataclass(frozen=True)
class Row:
    """One live row of a batch: a request, and the positions that this forward reads and computes.

    - `tokens`: token ids from position 0 on. An id that the host does not know yet, for example
      under overlap scheduling, is None. So are ids up to cached + computed that are left out. A
      negative number stands for other content, such as that of an image, and is no id of the model.
    - `cached`: the number of positions whose KV exists before the forward.
    - `computed`: the number of positions after them whose KV the forward computes.
    - `slots`: per group, the slot of each position from 0 to cached + computed - 1. A position
      without a slot, for example outside a sliding window, has -1, and one that only another rank
      reads and writes ELSEWHERE. Pass host tensors: a device tensor needs a GPU call per row.
    - `space`: everything except tokens that the KV depends on, such as a LoRA adapter or a cache
      salt. Rows of different spaces never share KV.
    - `spare`: the last `spare` computed positions belong to the row, but need not be written.
    - `window`: overrides the window of the group, for layers with several windows in one group.
    - `frees`: once the window has left a page of the row, the engine frees it before the second
      forward of the request after that, unless another request or the prefix cache needs it.

    A tree of draft tokens has one row per branch. The branches share the cached positions. If two
    branches share a slot, it holds the same tokens in both.
    """

    request: str
    tokens: Sequence[int | None]
    cached: int
    computed: int
    slots: Mapping[str, torch.Tensor]
    space: str = ""
    spare: int = 0
    window: Window | None = None
    frees: bool = False

    def __post_init__(self) -> None:
        if (unknown := self.cached + self.computed - len(self.tokens)) > 0:
            vars(self)["tokens"] = [*self.tokens, *[None] * unknown]


@dataclass(frozen=True)
class Forward:
    """One forward pass.

    - `kind`: the engine's word for it, such as decode or extend.
    - `rows`: the live rows. A forward whose reads are unknown has no rows and passes `owned`.
      paritybit then checks only its writes and its replays.
    - `owned`: per group, the slots that the forward may write: none in a group that is left out.
      None means the slots of the computed positions of its rows.
    - `model`: distinguishes several models that compute for the same requests, such as a target and
      its draft model. Their known tokens may differ.
    - `repeats`: how many times the rows repeat, once per group of layers with slots of its own. The
      stages of a pipeline agree in the first ones.
    - `bases`: the wrong inputs from which the engine makes others, the first ones first.
    """

    kind: str
    rows: tuple[Row, ...]
    owned: Mapping[str, torch.Tensor] | None = None
    model: str = ""
    repeats: int = 1
    bases: "Sequence[Base]" = ()

    def having(self, group: str, slot: int) -> Iterator[tuple[Row, list[int]]]:
        """Yield the rows that have a slot of a group, each with its positions there."""
        for row in self.rows:
            if group in row.slots:
                places = (row.slots[group] == slot).nonzero().flatten().tolist()
                if places:
                    yield row, places


Where = Callable[[], tuple[str | None, str | None]]
"""Returns a line of the engine, and text about the lines around it, if they are known."""


class Located:
    """A value that a line of the engine fills. The watcher sets `learned` if it learns the line."""

    source: str | None
    learned: Where | None

    @property
    def place(self) -> dict[str, str | None]:
        """The line and the text about it, for a cause."""
        source, via = (self.source, None) if self.learned is None else self.learned()
        return {"source": source, "via": via}


@dataclass
class Base(Located):
    """A wrong input from which the engine makes others, such as the lengths of requests.

    An input that agrees with it is not to blame.

    - `kind`: what it is judged as: the kind of `Watcher.judge_inputs`, or None for an index list.
    - `rows`: the rows of the forward if it was right. None means that they are not known.
    - `source`, `learned`: as those of `StaticInput`.
    """

    name: str
    kind: str | None
    rows: Sequence[Row] | None
    source: str | None = None
    learned: Where | None = None

    @property
    def cause(self) -> dict[str, str | None]:
        """The cause that names it."""
        if self.kind is None:
            return {"what": f"the list {self.name}", **self.place}
        return {"what": self.name, "input": self.name, **self.place}


@dataclass(frozen=True)
class IndexList(Located):
    """The slots that an attention backend passes to its kernels, per row of the batch.

    Row r has the entries `entries[offsets[r] : offsets[r] + counts[r]]`. For a table of shape
    [rows, width], the offset is r * width. Rows from `len(forward.rows)` on are padding.

    - `computed`: a row lists its cached positions, then this many of the positions that it
      computes. None means all of them.
    - `step`: the list belongs to this step of a draft model. Positions of earlier steps count as
      cached.
    - `exact`: the kernel reads every entry, so entries before the window are wrong. Otherwise the
      kernel masks the window.
    - `page`: if greater than 1, each entry is a page number, and a row lists one entry per page.
    - `source`: the file and line in the engine that fills the list. If it is None, the watcher
      learns it.
    - `window`: overrides the window of the group, because some kernels read fewer positions.
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
    window: Window | None = None
    learned: Where | None = None


@dataclass(frozen=True)
class HostSlots:
    """The slots of a pool on the host, to which the engine copies KV, while nothing runs.

    - `size`: the number of slots.
    - `free`: the free slots, int64 [n]. A slot in the free list twice occurs twice.
    - `cached`: the slots that the prefix cache holds, int64 [n].
    - `locked`: how many of these are locked.
    - `pool`: the name of the pool in `At`, if the engine says that no copy from or to it runs.
    """

    size: int
    free: torch.Tensor
    cached: torch.Tensor
    locked: int = 0
    pool: str = ""


@dataclass(frozen=True)
class At:
    """Slots of a KV group, or of a pool elsewhere, such as the host or files, int64 [n].

    - `pool`: the name of the pool. It is "" for the KV group itself.
    """

    slots: torch.Tensor
    pool: str = ""


@dataclass(frozen=True)
class Copy:
    """A copy of KV of a group that takes time: the content of `source` goes to `target`.

    - `request`: the request that needs it, if there is one.
    - `queue`: copies of one queue run one after another, in the order in which they begin.
    - `after`: other queues for which it waits, such as FORWARDS, and names of copies and forwards.
    - `kept`: which of "source" and "target" the engine neither frees nor evicts before its end.
    - `planned`: whether it is only queued. Until it begins, its places may be read and written.
    """

    group: str
    source: At
    target: At
    request: str = ""
    queue: str = ""
    after: Sequence[str] = ()
    kept: tuple[str, ...] = ()
    planned: bool = False


FORWARDS = "forwards"
"""The queue of the forwards that the device may still run."""


def same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Return whether two tensors, of any dtypes and devices, hold the same values."""
    return other is not None and torch.equal(one.to(other.device, other.dtype), other)


@dataclass
class StaticInput(Located):
    """A tensor that a graph reads at a fixed address, or another tensor that is judged like one.

    - `live`, `size`: a replay uses the first `live` entries along `axis`. The entries from `live`
      to `size` are padding.
    - `valid`: the values that padding may have, as a half-open range. None means that no other
      value is known to be valid, so paritybit never overwrites the padding.
    - `source`: the file and line in the engine that fills the tensor. If it is None, the watcher
      learns it.
    - `expected`: the values that the batch implies for the live part, on any device.
    - `writes`: the group whose slots to write the tensor holds, if it holds slots to write.
    - `dtype`: the dtype that the engine's own code uses for such values. None accepts any dtype.
    - `copied`: the engine's tensor, if `tensor` is a copy of a part of it.
    - `earlier`: what the padding held before an earlier replay of the same graph. It is valid, too.
    - `implied`: the bases from which it is made, each with the values for the live part that follow
      if all other inputs are right. None means that they are not known.
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
    learned: Where | None = None
    copied: torch.Tensor | None = None
    earlier: torch.Tensor | None = None
    implied: Sequence[tuple[Base, torch.Tensor | None]] = ()

    def base(self, live: torch.Tensor) -> Base | None:
        """Return the first wrong input from which a wrong live part follows, or None.

        Where it is not known what follows from one, it may follow from that one.
        """
        known = takewhile(lambda pair: pair[1] is not None, self.implied)
        return next((base for base, value in known if same(live, value)), None)

    def cause(self, live: torch.Tensor) -> dict[str, str | None] | None:
        """Return the cause of a wrong live part: its base, this input, or None if it is not known.

        It may follow from several bases at a time.
        """
        if (base := self.base(live)) is not None:
            return base.cause
        values = [one for _, one in self.implied]
        others = [one for one in values if one is None or not same(one, self.expected)]
        if len(others) > 1 or any(one is None for one in others):
            return None
        return {"what": self.name, "input": self.name, **self.place}


@dataclass
class RowValues(Located):
    """A value that the engine uses for each row of a batch, such as a temperature.

    - `requests`: the request of each row. A request may have several rows.
    - `held`, `right`: what the engine uses, and what the request of the row asked for or has
      computed, [rows, ...] on one device.
    - `within`: the largest difference that is rounding, relative to the largest value of the row.
    - `source`: the line that fills it, if none is seen to write `filled`.
    - `filled`: the engine's tensor with these values, for the line that fills it.
    - `explain`: returns a text about a wrong row, if there is something to say.
    - `untried`: why the value is not judged in these rows. The rest then has no meaning.
    """

    name: str
    requests: Sequence[str]
    held: torch.Tensor
    right: torch.Tensor
    within: float = 0.0
    source: str | None = None
    learned: Where | None = None
    filled: torch.Tensor | None = None
    explain: Callable[[int], str | None] | None = None
    untried: str | None = None


PIECES = "the code between the graphs of a forward pass cannot be repeated"
"""Why the replay of several graphs in one forward runs only once."""


@dataclass
class Replay:
    """One replay of a captured graph, or a forward without one, which may run again.

    - `graph`: identifies the capture, or what runs.
    - `kind`: the engine's name for the graph runner.
    - `rows`, `bucket`: the number of live rows (or tokens), and the number that was captured.
    - `run`: replays the graph. It may be called several times.
    - `outputs`: returns the live part of the outputs, by name.
    - `eager`: computes the same outputs without the graph. None if the engine cannot.
    - `padding`: returns the parts of the outputs that belong to padding.
    - `once`: why `run` may be called only once, for example because the replay waits for other
      ranks, draws random numbers, or changes state other than KV and its inputs. None if it may be
      called again.
    """

    graph: object
    kind: str
    rows: int
    bucket: int
    inputs: Sequence[StaticInput]
    run: Callable[[], object]
    outputs: Callable[[], Mapping[str, torch.Tensor]] = field(default=dict)
    eager: Callable[[], Mapping[str, torch.Tensor]] | None = None
    padding: Callable[[], Sequence[torch.Tensor]] = tuple
    once: str | None = None
