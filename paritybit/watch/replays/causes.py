"""Finds the static input that explains a finding, by resetting one input at a time.

An input explains a finding if, with this input alone reset, the violated invariant holds. A reset
input has its value at capture in its padded tail, and the values of the batch in its live part.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.facts import Base, StaticInput
from paritybit.watch.ledger import Ledger
from paritybit.watch.replays.rerun import Rerun, Saved, SavedSlots, overwritten, tail

LIVE = "live part"


@dataclass(frozen=True)
class Suspect:
    """A static input with another value than a reset one. `parts` says which part differs.

    `base` is the wrong input from which its live part follows, if there is one.
    """

    static: StaticInput
    value: Tensor
    parts: str
    base: Base | None = None

    @property
    def live(self) -> bool:
        """Whether the live part differs from a reset one."""
        return LIVE in self.parts

    @property
    def cause(self) -> dict[str, Any]:
        """The cause that names the input, or its base, after an experiment has shown it."""
        if self.base is not None:
            return {**self.base.cause}
        what = f"the {self.parts} of {self.static.name} alone explains it"
        return {"what": what, "input": self.static.name, **self.static.place, "shown": True}

    def reset(self, rerun: Rerun) -> Rerun:
        """Return a rerun that begins with this input reset. It has no results yet."""
        rerun.changed = True
        other = copy.copy(rerun)
        other.inputs = Saved([*rerun.inputs.pairs, (self.static.tensor, self.value)])
        return other

    def explains(self, rerun: Rerun, violated: Callable[[Rerun], bool]) -> bool:
        """Return whether an invariant that a rerun violates holds with this input reset."""
        other = self.reset(rerun)
        other.again()
        other.first = other.values().kept()
        return not violated(other)


def suspects_of(rerun: Rerun, captured: Mapping[str, Tensor]) -> list[Suspect]:
    """Return the inputs of a rerun that a reset would change. `captured` has values at capture."""
    before = {(tensor.data_ptr(), tensor.shape): value for tensor, value in rerun.inputs.pairs}
    found = []
    for static in rerun.replay.inputs:
        now = before.get((static.tensor.data_ptr(), static.tensor.shape))
        if now is None:
            continue
        value, parts, was, base = now.clone(), [], captured.get(static.name), None
        padded = static.live < static.size <= now.shape[static.axis]
        if padded and was is not None and was.shape == now.shape:
            tail(static, value).copy_(tail(static, was))
            if not torch.equal(tail(static, value), tail(static, now)):
                parts.append("padded tail")
        mine = value.narrow(static.axis, 0, min(static.live, value.shape[static.axis]))
        if static.expected is not None and static.expected.shape == mine.shape:
            right = static.expected.to(mine.device, mine.dtype)
            if not torch.equal(mine, right):
                base = static.base(mine)
                mine.copy_(right)
                parts.append(LIVE)
        if parts:
            found.append(Suspect(static, value, " and the ".join(parts), base))
    return found


@dataclass(frozen=True)
class Explained:
    """The causes of stray writes with their slots, and the first changed layer of each slot."""

    causes: list[tuple[dict[str, Any], list[int]]]
    layers: dict[int, str]


def explain(
    rerun: Rerun, ledger: Ledger, stray: Tensor, suspects: Collection[Suspect]
) -> Explained:
    """Find the static inputs that cause stray writes.

    The replay runs again over poison in the stray slots. If it leaves a slot alone once one input
    is reset, this input is the cause for the slot.
    """
    saved = SavedSlots.of(ledger, stray)
    poison = saved.inverted()
    causes: list[tuple[dict[str, Any], list[int]]] = []
    with rerun.restoring([saved]):
        tensors = overwritten(rerun, poison)
        hit, layers = tensors.any(0), first_layers(ledger, stray, tensors)
        for suspect in suspects:
            if not bool(hit.any()):
                break
            spared = hit & ~overwritten(suspect.reset(rerun), poison).any(0)
            if bool(spared.any()):
                causes.append((suspect.cause, stray[spared].tolist()))
                hit = hit & ~spared
    return Explained(causes, layers)


def first_layers(ledger: Ledger, slots: Tensor, hit: Tensor) -> dict[int, str]:
    """Return the first layer in which each slot was overwritten. `hit` is bool [tensors, n]."""
    pairs = zip(slots.tolist(), hit.T.tolist(), strict=True)
    return {slot: ledger.layers[mine.index(True)] for slot, mine in pairs if True in mine}
