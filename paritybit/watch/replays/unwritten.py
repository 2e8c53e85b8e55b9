"""Finds slots that a forward should write and that keep their bytes, at least in one tensor.

Equal bytes prove nothing: a token may have them again. So the forward runs again over other bytes,
and what it leaves alone there, it does not write. The other tensors of the slot are the control.

A tensor is expected to be written if rows like these have written it: layers of several of the
engine's groups, or none, may use it. Draft models may leave out layers, and a state is changed
where it is. They are judged by whole slots.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paritybit.watch.facts import Forward
from paritybit.watch.ledger import Ledger
from paritybit.watch.reading import Writes, known, slots_read
from paritybit.watch.replays.rerun import Rerun, rewritten

Kind = tuple[int, str]
"""The number of the repetition of a row in its forward, and a KV group."""


@dataclass(frozen=True)
class Quiet:
    """Slots of a group that look unwritten: some of the `writes` of a forward.

    `changed` says which tensors changed there, and `needed` which ones had to if the slot was
    written, bool [tensors, n] each.
    """

    ledger: Ledger
    writes: Writes
    changed: Tensor
    needed: Tensor

    def of(self, at: Tensor) -> "Quiet":
        """Return a part of the slots. `at` is bool [n]."""
        return Quiet(self.ledger, self.writes.of(at), self.changed[:, at], self.needed[:, at])

    def tried(self, rerun: Rerun) -> tuple[Tensor, "Quiet"]:
        """Repeat the forward over other bytes.

        Returns which slots it writes, bool [n], and those in which it leaves out a tensor, which
        are then `needed` alone.
        """
        wrote = rewritten(rerun, self.ledger, self.writes.slots)
        repeats = wrote.any(0) & ~(self.changed & ~wrote).any(0)
        left = replace(self, needed=self.needed & ~self.changed & ~wrote)
        return wrote.any(0), left.of(repeats & left.needed.any(0))


@dataclass
class Expected:
    """The tensors that rows have written, bool [tensors] by their kind."""

    tensors: dict[Kind, Tensor] = field(default_factory=dict)

    def needed(self, forward: Forward, writes: Writes, ledger: Ledger, changed: Tensor) -> Tensor:
        """Return which tensors must change if a slot is written, bool [tensors, n].

        `changed` says which did.
        """
        needed = torch.zeros_like(changed)
        if forward.model:
            return needed
        part = writes.row // max(1, len(forward.rows) // forward.repeats)
        for number in part.unique().tolist():
            mine, kind = part == number, (number, ledger.group.name)
            before = self.tensors.setdefault(kind, changed.new_zeros(len(changed)))
            before |= changed[:, mine].any(1)
            needed[:, mine] = before[:, None]
        read = torch.zeros_like(ledger.usable)
        read[slots_read(forward, ledger)] = True
        return needed & ~read[writes.slots]


def quiet(ledger: Ledger, writes: Writes, changed: Tensor, needed: Tensor) -> Quiet:
    """Return the slots that a forward must write and that look unwritten."""
    left = ~changed.any(0) | (needed & ~changed).any(0)
    found = Quiet(ledger, writes, changed, needed)
    return found.of(left & writes.must & ~known(writes, ledger))
