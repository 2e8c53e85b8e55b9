"""Elements of static buffers that get other values in a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import torch
from paritybit.harness.lockstep.noise import index_bounds
from paritybit.harness.lockstep.pair import Pair
from paritybit.subjects.buffers import StaticInputs
from torch import Tensor

LENGTHS, ON_HOST = "seq_lens", "seq_lens_cpu"
"""Lengths, and their host copy. It must not exceed them, because it sizes the lists."""

Element = tuple[str, int, Tensor]
"""A static buffer's name, the flat index of an element, and its new value."""


def within_bounds(pair: Pair, static: Mapping[str, Tensor], element: Element) -> bool:
    """Whether an element may have a value, whatever the other elements are.

    `static` has the static buffers of the forward, by name.
    """
    name, place, value = element
    if value.dtype.is_floating_point or value.dtype is torch.bool:
        return True
    bound = index_bounds(pair.config, pair.graph_pools.sizes).get(name, 0)
    if name in (LENGTHS, ON_HOST):
        bound = pair.config.max_context + 1
    if not 0 <= int(value) < bound:
        return False
    if name == LENGTHS:
        return ON_HOST in static and int(static[ON_HOST].view(-1)[place]) <= int(value)
    return name != ON_HOST or int(value) <= int(static[LENGTHS].view(-1)[place])


@contextmanager
def held_by(inputs: StaticInputs, elements: Sequence[Element]) -> Iterator[None]:
    """Set these elements each time the static inputs are populated.

    Code that derives another input from them reads the new values.
    """
    populate = inputs.populate

    def changed(*given: Any, **named: Any) -> None:
        populate(*given, **named)
        for name, place, value in elements:
            if name in inputs.buffers:
                inputs.buffers[name].view(-1)[place] = value

    inputs.populate = changed  # type: ignore[method-assign]
    try:
        yield
    finally:
        del inputs.populate


def overlapping(buffers: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yield the names of each two buffers that share memory."""
    there = [(name, one) for name, one in buffers.items() if one.numel()]
    for (name, one), (other, two) in combinations(there, 2):
        begins, ends = zip(
            *((it.data_ptr(), it.data_ptr() + it.numel() * it.element_size()) for it in (one, two)),
            strict=True,
        )
        if max(begins) < min(ends):
            yield name, other
