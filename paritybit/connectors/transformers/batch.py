"""The live rows of a batch, by the lists that attention is given.

The slots of a row are those that the engine's own lists name: what is read at a position is the
entry of that position, and what is written is that of its new token. So the layout of a window
within its pages is the engine's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.transformers.cache import Part
from paritybit.watch.facts import Row


@dataclass(frozen=True)
class Planned:
    """A request of a batch: its state, its cached and new tokens, and whether it gets one more."""

    state: Any
    cached: int
    computed: int
    predicted: bool

    def tokens(self) -> list[int | None]:
        """Return its tokens; those that the host does not know yet are None."""
        known: list[int | None] = [*self.state.initial_tokens, *self.state.generated_tokens]
        return known + [None] * (self.cached + self.computed - len(known))


@dataclass
class Lists:
    """The lists of one group: what each row reads, in order, and what it writes.

    `ends` are the ends of the rows' parts of `read`. Of a batch that reads no list, it is empty.
    """

    read: Tensor
    write: Tensor
    ends: list[int]


@dataclass
class Batch:
    """A batch under way: `given` are the keyword arguments of the model."""

    requests: Sequence[Planned]
    given: Mapping[str, Any]
    parts: Mapping[str, Part]
    lists: dict[str, Lists] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            self.lists[name] = self._lists_of(part)

    @property
    def size(self) -> int:
        """How many tokens are computed, padding apart."""
        return sum(one.computed for one in self.requests)

    @property
    def padded(self) -> int:
        """How many tokens are computed."""
        return int(self.given["input_ids"].shape[-1])

    @property
    def kind(self) -> str:
        """What is done for the rows."""
        return "decode" if all(one.computed == 1 for one in self.requests) else "prefill"

    def _lists_of(self, part: Part) -> Lists:
        index, total = part.allocator.index, self.size
        if self.given.get("block_table") is not None:
            return self._from_table(part, self.given["block_table"][index])
        write = self.given["write_index"][index]
        read = self.given["read_index"][index]
        if not read.numel():
            return Lists(read, write[:total], [0] * len(self.requests))
        ends = self.given["cu_seq_lens_k"][part.name].tolist()[1 : len(self.requests) + 1]
        return Lists(read, write[:total], ends)

    def _from_table(self, part: Part, table: Tensor) -> Lists:
        """Return the lists that a kernel makes of a table of pages."""
        lengths = [one.cached + one.computed for one in self.requests]
        table = table.to("cpu", torch.int64)
        read = []
        for row, length in enumerate(lengths):
            position = torch.arange(length)
            page = table[row, (position // part.page).clamp(max=table.shape[1] - 1)]
            read.append(page * part.page + position % part.page)
        write = [rows[one.cached :] for rows, one in zip(read, self.requests, strict=True)]
        return Lists(torch.cat(read), torch.cat(write), list(accumulate(lengths)))

    def rows(self) -> tuple[Row, ...]:
        """Return the rows of the forward pass."""
        slots: list[dict[str, Tensor]] = [{} for _ in self.requests]
        for name, lists in self.lists.items():
            for mine, found in zip(slots, self._slots(self.parts[name], lists), strict=True):
                mine[name] = found
        return tuple(
            Row(one.state.request_id, one.tokens(), one.cached, one.computed, mine)
            for one, mine in zip(self.requests, slots, strict=True)
        )

    def _slots(self, part: Part, lists: Lists) -> list[Tensor]:
        """Return the slot of each position of each row, -1 where it has none."""
        read, write = part.slots(lists.read), self._written(part, lists)
        found, place, begin = [], 0, 0
        for one, end in zip(self.requests, lists.ends, strict=True):
            slots = torch.full((one.cached + one.computed,), -1)
            old = read[begin : max(begin, end - one.computed)]
            old = old[max(0, len(old) - one.cached) :]
            slots[one.cached - len(old) : one.cached] = old
            slots[one.cached :] = write[place : place + one.computed]
            found.append(slots)
            place, begin = place + one.computed, max(begin, end)
        return found

    def written(self) -> dict[str, Tensor]:
        """Return, per group, the slots that new tokens are written to."""
        found = {name: self._written(self.parts[name], one) for name, one in self.lists.items()}
        return {name: slots[slots >= 0] for name, slots in found.items()}

    def _written(self, part: Part, lists: Lists) -> Tensor:
        """Return the slot that each new token is written to, -1 for the one that is never read."""
        slots = part.slots(lists.write)
        return slots.masked_fill(slots == part.slots(torch.tensor(part.trash[2:])), -1)
