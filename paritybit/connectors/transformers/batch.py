"""The live rows of a batch, from the index lists that attention gets.

A row's slots are those in the lists, so the layout of a window in its pages does not matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.transformers.cache import Part
from paritybit.watch.facts import Row


@dataclass(frozen=True)
class Planned:
    """A request: its state, numbers of cached and computed tokens, and whether it gets a token."""

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
    """The entries of one group that the rows read and write, and the end of each row's part."""

    read: Tensor
    write: Tensor
    ends: list[int]


class Batch:
    """The current batch. `given` are the keyword arguments of the model."""

    def __init__(
        self, requests: Sequence[Planned], given: Mapping[str, Any], parts: Mapping[str, Part]
    ) -> None:
        self.requests, self.given, self.parts = requests, given, parts
        self.size = sum(one.computed for one in requests)
        """The number of computed tokens, without padding."""
        self.padded = int(given["input_ids"].shape[-1])
        """The number of computed tokens, with padding."""
        self.predicted = sum(one.predicted for one in requests)
        self.kind = "decode" if all(one.computed == 1 for one in requests) else "prefill"
        self.lists = {name: self._lists_of(part) for name, part in parts.items()}

    def _lists_of(self, part: Part) -> Lists:
        index = part.allocator.index
        if self.given.get("block_table") is not None:
            return self._from_table(part, self.given["block_table"][index].to("cpu", torch.int64))
        write, read = self.given["write_index"][index], self.given["read_index"][index]
        ends = [0] * len(self.requests)
        if read.numel():
            ends = self.given["cu_seq_lens_k"][part.name].tolist()[1 : len(self.requests) + 1]
        return Lists(read, write[: self.size], ends)

    def _from_table(self, part: Part, table: Tensor) -> Lists:
        """Return the lists that a kernel derives from a table of pages."""
        lengths = [one.cached + one.computed for one in self.requests]
        read = []
        for row, length in enumerate(lengths):
            position = torch.arange(length)
            page = table[row, (position // part.page).clamp(max=table.shape[1] - 1)]
            read.append(page * part.page + position % part.page)
        write = [rows[one.cached :] for rows, one in zip(read, self.requests, strict=True)]
        return Lists(torch.cat(read), torch.cat(write), list(accumulate(lengths)))

    def rows(self) -> tuple[Row, ...]:
        """Return the rows of the forward pass."""
        slots = {name: self._slots(part, self.lists[name]) for name, part in self.parts.items()}
        return tuple(
            Row(
                one.state.request_id,
                one.tokens(),
                one.cached,
                one.computed,
                {name: found[at] for name, found in slots.items()},
            )
            for at, one in enumerate(self.requests)
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
    """Return the slots that the first `count` tokens may write, on the device, without a wait."""
    found, table = {}, given.get("block_table")
    for name, part in parts.items():
        number = part.allocator.index
        if table is None:
            indices = given["write_index"][number][:count]
        else:
            position = given["position_ids"][0, :count].long()
            column = (position // part.page).clamp(max=table.shape[-1] - 1)
            page = table[number][:count].gather(1, column[:, None])[:, 0]
            indices = page.long() * part.page + position % part.page
        found[name] = part.slots(indices)
    return found
