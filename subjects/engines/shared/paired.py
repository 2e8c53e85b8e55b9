"""KV of an engine read in a world's layout and slot numbers, and written, through a bijection.

Knows no engine: the bijection is between our slots of a sub-pool and an engine's.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from torch import Tensor


class PairedKV(ABC):
    """A world's storage and an engine's, of which every place has one counterpart."""

    @abstractmethod
    def _planes(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield K or V of each layer: the world's, the engine's, the bijection of their places."""

    def write_kv(self) -> None:
        """Give every place of the engine the bytes of its counterpart in the world's storage."""
        for plane, buffer, places in self._planes():
            buffer[places] = plane

    def read_kv(self) -> None:
        """Give every place of the world's storage the bytes of its counterpart in the engine."""
        for plane, buffer, places in self._planes():
            plane.copy_(buffer[places])


def pair_slots(
    count: int,
    reserved: int,
    ours: Sequence[int],
    theirs: Sequence[int],
    apart: Collection[int] = (),
    total: int | None = None,
) -> tuple[int, ...]:
    """Return the engine's slot of each of our `count` slots.

    `ours` and `theirs` are the slots of the same tokens, in the same order. The first
    `reserved` slots are their own counterparts; slots that hold no token are paired in order.
    The engine has `total` slots, as many more as are `apart` unless it is given; those apart
    have no counterpart.
    Raises RuntimeError where two tokens of a side have one slot, or one that is no token's.
    """
    slots_there = count + len(apart) if total is None else total
    most = {"ours": count, "the engine's": slots_there}
    for side, slots in (("ours", ours), ("the engine's", theirs)):
        if len(set(slots)) != len(slots):
            raise RuntimeError(f"two tokens have one slot; the slots are {side}: {sorted(slots)}")
        nobodys = apart if slots is theirs else ()
        wrong = [slot for slot in slots if slot in nobodys or not reserved <= slot < most[side]]
        if wrong:
            raise RuntimeError(f"tokens have slots of nobody; the slots are {side}: {wrong}")
    paired = dict(zip(ours, theirs, strict=True)) | {slot: slot for slot in range(reserved)}
    taken = {*paired.values(), *apart}
    free = (slot for slot in range(slots_there) if slot not in taken)
    return tuple(paired[slot] if slot in paired else next(free) for slot in range(count))


def inverse(paired: Sequence[int]) -> tuple[int, ...]:
    """Return our slot of each of the engine's slots, -1 for one that has none."""
    found = [-1] * (max(paired) + 1)
    for ours, theirs in enumerate(paired):
        found[theirs] = ours
    return tuple(found)
