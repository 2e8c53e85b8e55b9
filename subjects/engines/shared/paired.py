"""KV of an engine read in a world's layout and slot numbers, and written, through a bijection.

Knows no engine: the bijection is between our slots of a sub-pool and an engine's.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Plane(NamedTuple):
    """K or V of a layer: the world's, the engine's, and how places of one are the other's.

    `places` are the engine's places of each of the world's; `unpaired` are those of the engine that
    no token of the world has, and that no forward may write.
    """

    world: Tensor
    engine: Tensor
    places: Tensor
    unpaired: Tensor


class PairedKV(ABC):
    """A world's storage and an engine's: each place of the world has a counterpart.

    An engine may have further places, which no world compares. `write_kv` clears these, and
    `strayed` says, in words, which one was not clear at the `read_kv` after it; None if all were.
    `unit` is what the engine calls a place.
    """

    unit = "slot"
    strayed: str | None = None

    @abstractmethod
    def _planes(self) -> Iterator[Plane]:
        """Yield K or V of each layer."""

    def write_kv(self) -> None:
        """Give every place of the engine the bytes of its counterpart in the world's storage."""
        for plane in self._planes():
            plane.engine[plane.places] = plane.world
            plane.engine[plane.unpaired] = 0

    def read_kv(self) -> None:
        """Give every place of the world's storage the bytes of its counterpart in the engine."""
        written = list[Tensor]()
        for plane in self._planes():
            plane.world.copy_(plane.engine[plane.places])
            places = plane.unpaired
            found = plane.engine[places].flatten(1).any(1)
            written.append(torch.where(found, places.to(found.device), NOBODY))
        first = int(torch.cat(written).min()) if any(map(len, written)) else NOBODY
        self.strayed = (
            None
            if first == NOBODY
            else f"the forward wrote the engine's {self.unit} {first}, which holds no token's KV"
        )


NOBODY = 2**62
"""Stands for no place where a place is asked for."""


def unpaired_of(paired: Sequence[int], total: int, at_will: Collection[int] = ()) -> Tensor:
    """Return which of an engine's `total` places are no counterpart, int64.

    Those that may be written `at_will` are left out.
    """
    return torch.tensor(sorted({*range(total)} - {*paired, *at_will}), dtype=torch.int64)


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
            raise RuntimeError(f"two tokens share a slot; the slots are {side}: {sorted(slots)}")
        nobodys = apart if slots is theirs else ()
        wrong = [slot for slot in slots if slot in nobodys or not reserved <= slot < most[side]]
        if wrong:
            raise RuntimeError(f"tokens have slots without an owner; the slots are {side}: {wrong}")
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
