"""Other values for KV slots, drawn element by element at random.

No norm, mean or softmax of a model removes such a change. Numbers are drawn within a size, which
begins at the largest number that the tensor holds. What is no number, such as a quantised key, gets
the content of other slots of the tensor, so that it stays a valid encoding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers
from paritybit.watch.ledger import Ledger
from paritybit.watch.replays.rerun import SavedSlots

NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes that hold numbers. Others, such as eight-bit floats, may have scales or be packed."""

STEPS = 5
"""The number of sizes, from a tensor's own to LARGE."""

LARGE = 2.0**40
"""The largest size. A product of three such numbers is finite in float32 and bfloat16."""

MOST_TENSORS = 1009
"""More than the number of tensors of a group, whose values differ."""

SAMPLE = 256
"""The number of slots from which a tensor's own size, and other content, are taken."""


@dataclass(frozen=True)
class ValueSeed:
    """Which values are drawn: a seed, the number of the size, and a sign.

    Draws that differ in sign have opposite numbers: a query that ignores a large key under one
    attends to it under the other.
    """

    seed: int
    step: int = 0
    sign: int = 1


def draws(seed: int) -> Iterator[ValueSeed]:
    """Yield draws of all sizes, each with both signs."""
    for step, sign in product(range(STEPS), (1, -1)):
        yield ValueSeed(seed, step, sign)


def sampled(slots: Tensor, count: int, seed: int) -> Tensor:
    """Return at most `count` of the slots, drawn without the engine's own generator."""
    if len(slots) <= count:
        return slots
    drawing = torch.Generator().manual_seed(seed)
    return slots[torch.randperm(len(slots), generator=drawing)[:count]]


def typical(ledger: Ledger, read: Tensor) -> Tensor:
    """Return slots with valid content: some that are `read`, then others that were written."""
    written = (ledger.forward > 0).nonzero().flatten()
    others = written[~torch.isin(written, read)]
    some = sampled(read, SAMPLE, 0)
    return torch.cat((some, sampled(others, SAMPLE - len(some), 0)))


def size_of(rows: Tensor, step: int) -> float:
    """Return a size from the geometric row from the largest number in rows to the largest size."""
    sizes = rows.float().abs()
    sizes = sizes[sizes.isfinite()]
    most = min(LARGE, math.sqrt(torch.finfo(rows.dtype).max))
    own = (min(float(sizes.amax()), most) if sizes.numel() else 0.0) or 1.0
    return own * math.pow(most / own, step / (STEPS - 1))


def other_values(saved: SavedSlots, read: Tensor, draw: ValueSeed) -> SavedSlots:
    """Return slots with other values. `read` are slots whose content is valid."""
    ledger, found = saved.ledger, []
    source = typical(ledger, read)
    for number, rows in zip(saved.numbers, saved.rows, strict=True):
        seed = (draw.seed * STEPS + draw.step) * MOST_TENSORS + number
        drawing = torch.Generator(rows.device).manual_seed(seed)
        (own,) = SavedSlots.of(ledger, source, [number]).rows
        if rows.dtype in NUMBERS:
            size = draw.sign * size_of(own, draw.step)
            noise = torch.empty(rows.shape, device=rows.device)
            found.append(noise.uniform_(-1, 1, generator=drawing).mul_(size).to(rows.dtype))
        elif len(own):
            shape = (2, len(rows))  # One for each sign.
            both = torch.randint(len(own), shape, generator=drawing, device=rows.device).cpu()
            chosen = both[int(draw.sign < 0)]
            same = source[chosen] == saved.slots
            chosen = torch.where(same, (chosen + 1) % len(own), chosen)
            found.append(as_integers(own)[chosen].view(rows.dtype))
        else:
            found.append(rows)
    return SavedSlots(ledger, saved.slots, saved.numbers, found)
