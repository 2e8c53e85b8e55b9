"""What happened to slots between forwards, entered into a ledger at once.

Each change is noted by a copy of its slot numbers alone, which does not wait for a GPU. `enter`
then brings the ledger up to date with all changes, in their order.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paritybit.watch.ledger import Ledger
from paritybit.watch.observations import Freeing

FREED, ALLOCATED, FILLED = "freed", "allocated", "filled"

MOST = 4096
"""Changes that are kept before the ledger is brought up to date."""


@dataclass(frozen=True)
class Change:
    """What happened to some slots, of any shape, by which call if they were freed.

    Pages are freed and allocated whole, and named by their first slots; other slots are ignored.
    """

    what: str
    freeing: int
    slots: Tensor


@dataclass
class Changes:
    """The changes of one ledger that are not entered yet."""

    ledger: Ledger
    noted: list[Change] = field(default_factory=list)

    def note(self, what: str, slots: Tensor, forward: int = 0, source: str | None = None) -> None:
        """Note a change of slots. The engine may change the tensor afterwards.

        Slots that are freed are so before a forward, from a line of source.
        """
        if slots.numel():
            copied = slots.to(self.ledger.device, torch.int64, copy=True)
            freeing = self.ledger.note_freeing(forward, source) if what == FREED else 0
            self.noted.append(Change(what, freeing, copied))

    def enter(self) -> Freeing | None:
        """Bring the ledger up to date. Returns the slots that were freed; None without changes."""
        if not self.noted:
            return None
        noted = [replace(change, slots=change.slots.flatten()) for change in self.noted]
        self.noted.clear()
        if filled := [change.slots for change in noted if change.what == FILLED]:
            self.ledger.forget(torch.cat(filled))
        places, number = self._in_order(noted)
        freeings = [change.freeing for change in noted]
        freed = torch.tensor(freeings, dtype=torch.int32, device=self.ledger.device)[number]
        column = self.ledger.wide[-1]
        another = places[1:] != places[:-1]
        first = torch.cat([another.new_ones(1), another])
        held = column[places]
        # The last freeing up to each change: its own, an earlier one here, or the column's.
        known = torch.where(freed != 0, freed, held.abs())
        steps = torch.arange(len(places), device=places.device)
        known = known[steps.masked_fill(~first & (freed == 0), 0).cummax(0).values]
        state = torch.where(freed != 0, known, -known)
        before = torch.where(first, held, state.roll(1))
        last = torch.cat([another, another.new_ones(1)])
        column[places[last]] = state[last]
        mine = (freed != 0) & (places < self.ledger.slots)
        return Freeing(self.ledger, places[mine], before[mine], freed[mine])

    def _in_order(self, noted: list[Change]) -> tuple[Tensor, Tensor]:
        """Return places of the ledger and numbers of changes, by place, then by number."""
        page = self.ledger.group.page_size
        places, numbers = [], []
        for whole in (False, True):
            chosen = [n for n, change in enumerate(noted) if (change.what != FILLED) == whole]
            if not chosen:
                continue
            slots = torch.cat([noted[n].slots for n in chosen])
            counts = torch.tensor([len(noted[n].slots) for n in chosen])
            number = torch.tensor(chosen).repeat_interleave(counts).to(slots.device)
            if whole and page > 1:
                first = slots.masked_fill(slots % page != 0, -page)
                slots = (first[:, None] + torch.arange(page, device=slots.device)).flatten()
                number = number.repeat_interleave(page)
            places.append(self.ledger.places(slots))
            numbers.append(number)
        place, number = torch.cat(places), torch.cat(numbers)
        order = (place * len(noted) + number).argsort()
        return place[order], number[order]
