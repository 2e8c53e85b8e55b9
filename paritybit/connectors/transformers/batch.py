"""The live rows of a batch, from the index lists that attention gets.

The slots of a row are those in the engine's own lists: the read list for cached positions, and the
write list for new tokens. The connector therefore does not depend on the layout of a window in its
pages.
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
    """A request of a batch: its state, and its numbers of cached and computed tokens.

    `predicted` is True if the forward samples a token for it.
    """

    state: Any
    cached: int
    computed: int
    predicted: bool

    def tokens(self) -> list[int | None]:
        """Return the tokens of the request. A token that the host does not know yet is None."""
        known: list[int | None] = [*self.state.initial_tokens, *self.state.generated_tokens]
        return known + [None] * (self.cached + self.computed - len(known))


@dataclass
class Lists:
    """The index lists of one group: the entries that the rows read and write, in order.

    `ends` has the end of each row's part of `read`. If a batch reads no list, `read` is empty.
    """

    read: Tensor
    write: Tensor
    ends: list[int]


@dataclass
class Batch:
    """The current batch. `given` are the keyword arguments of the model."""

    requests: Sequence[Planned]
    given: Mapping[str, Any]
    parts: Mapping[str, Part]
    lists: dict[str, Lists] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            self.lists[name] = self._lists_of(part)

    @property
    def size(self) -> int:
        """The number of computed tokens, without padding."""
        return sum(one.computed for one in self.requests)

    @property
    def padded(self) -> int:
        """The number of computed tokens, with padding."""
        return int(self.given["input_ids"].shape[-1])

    @property
    def kind(self) -> str:
        """The kind of the forward: decode or prefill."""
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
        """Return the lists that a kernel derives from a table of pages."""
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
        """Return the slot of each position of each row, or -1 for a position without a slot."""
        read, write = part.slots(lists.read).cpu(), self._written(part, lists)
        found, place, begin = [], 0, 0
        for one, end in zip(self.requests, lists.ends, strict=True):
            slots = torch.full((one.cached + one.computed,), -1)
            size = min(max(0, end - one.computed - begin), one.cached)
            old = read[end - one.computed - size : end - one.computed]  # The list may be too short.
            slots[one.cached - size :][: len(old)] = old
            slots[one.cached :] = write[place : place + one.computed]
            found.append(slots)
            place, begin = place + one.computed, max(begin, end)
        return found

    def written(self) -> dict[str, Tensor]:
        """Return the slots of new tokens, per group."""
        found = {name: self._written(self.parts[name], one) for name, one in self.lists.items()}
        return {name: slots[slots >= 0] for name, slots in found.items()}

    def _written(self, part: Part, lists: Lists) -> Tensor:
        """Return the slot of each new token, or -1 for the slot that absorbs unused writes."""
        slots = part.slots(lists.write).cpu()
        return slots.masked_fill(slots == part.slots(torch.tensor(part.trash[2:])), -1)


def written_on_device(
    count: int, given: Mapping[str, Any], parts: Mapping[str, Part]
) -> dict[str, Tensor]:
    """Return the slots that the first `count` tokens of a batch may write, per group.

    They are on the device of the batch, and the call does not wait for it. A table of pages belongs
    to a batch with one token per request.
    """
    table = given.get("block_table")
    if table is None:
        return {
            name: part.slots(given["write_index"][part.allocator.index][:count])
            for name, part in parts.items()
        }
    found = {}
    for name, part in parts.items():
        position = given["position_ids"][0, :count].long()
        mine = table[part.allocator.index]
        column = (position // part.page).clamp(max=mine.shape[1] - 1)
        page = mine[:count].gather(1, column[:, None])[:, 0]
        found[name] = part.slots(page.long() * part.page + position % part.page)
    return found
