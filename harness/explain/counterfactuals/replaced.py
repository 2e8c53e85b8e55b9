"""An argument of ops, replaced by that of another run."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from paritybit.harness.explain.counterfactuals.listed import Pair
from paritybit.harness.explain.facts import GivenValue
from paritybit.harness.explain.recorded import Given
from paritybit.harness.lockstep.bits import bits
from torch import Tensor

LISTS = ("begin", "end", "slots")
"""The arguments of attention that determine the keys of each row, by one list for all rows."""

LOCATIONS = "loc"
"""The argument that says where rows store KV."""

CACHE = "cache"
"""The argument that says which layer's KV an op reads or writes."""

STORED_AT = frozenset({LOCATIONS, "rows"})
"""The arguments of ops that say where rows store."""

STORED_ROWS = frozenset({*STORED_AT, "key", "value", "values"})
"""The arguments of store ops that have a row per token."""

LIST = "the list of keys"
"""The name of these arguments together."""

ROWS = "the rows"
"""The name of all values of a store that has fewer rows than in the other run."""

NOT_GIVEN = frozenset({CACHE, "states", "table", "frequency", "decay", "norm", "weight", "sinks"})
"""An engine's own memory, or weights. Forwards do not make them, but may omit them."""


@dataclass(frozen=True)
class Replaced:
    """An argument of all ops of one name, and its right value for each op.

    - `held`, `right`: the value of the first op that differs and that of the other run, for live
      rows. For a list of keys, those of one row, including masked keys.
    - `windowed`: whether they are slots of the window's sub-pool.
    - `values`: the arguments by place, by the op's number among those of its name.
    - `number`: that of the last op that was first to differ.
    """

    op: str
    argument: str
    held: Tensor
    right: Tensor
    values: dict[int, dict[int, Any]]
    number: int = 0
    windowed: bool = False
    others: tuple[Pair, ...] = ()
    """What further ops of this name have, and the right values, perhaps made with the first."""
    whole: Pair | None = None
    """For a list of keys: the wrong argument of all rows, and the right one."""

    def spellings(self, mapping: Tensor) -> Iterator[list[Pair]]:
        """Yield the held and right values as they may exist before they reach the ops.

        Slots of a window are made from full slots by `mapping`. The full slots come first.
        """
        first = self.whole or (self.held, self.right)
        if self.windowed:
            yield [full_pair(first, mapping), *self.others]
        yield [first, *self.others]

    def given(self) -> Given:
        """Return a function that gives ops these arguments, for one run."""
        counts: Counter[str] = Counter()

        def give(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            number = counts[name]
            counts[name] += 1
            if name != self.op or number not in self.values:
                return arguments
            changed = list(arguments)
            for place, value in self.values[number].items():
                if place < len(changed):
                    changed[place] = value
            return tuple(changed)

        return give


def full_pair(pair: Pair, mapping: Tensor) -> Pair:
    """Return held and right slots of the window's sub-pool as full slots."""
    return spelled_full(pair[0], mapping), spelled_full(pair[1], mapping)


def spelled_full(slots: Tensor, mapping: Tensor) -> Tensor:
    """Return slots of the window's sub-pool as the full slots that `mapping` maps to them."""
    full = {swa: place for place, swa in enumerate(mapping.tolist()) if swa > 0}
    return torch.tensor([full.get(slot, slot) for slot in slots.tolist()], dtype=torch.int64)


def as_given(held: Any, right: Any, name: str = "") -> Any:
    """Return an argument with the rows of the other run's, or None if they are equal.

    Returns None also if their shapes differ so that rows cannot be matched. Integer widths may
    differ. Padded rows store at the reserved slot.
    """
    if held is None:
        return right
    if not isinstance(held, Tensor) or not isinstance(right, Tensor):
        plain = isinstance(held, int | float) and isinstance(right, int | float)
        return right if plain and held != right else None
    widths = not (held.is_floating_point() or right.is_floating_point())
    if (held.dtype != right.dtype and not widths) or held.dim() != right.dim():
        return None
    other = [axis for axis in range(held.dim()) if held.shape[axis] != right.shape[axis]]
    if len(other) > 1 or any(held.shape[axis] < right.shape[axis] for axis in other):
        return None
    changed = held.clone()
    for axis in other:
        if name in STORED_AT:
            changed.zero_()
        changed.narrow(axis, 0, right.shape[axis]).copy_(right)
    if not other:
        changed.copy_(right)
    return None if torch.equal(bits(changed), bits(held)) else changed


def value_given(one: Replaced) -> GivenValue:
    """Return an argument in words, with its held and right values."""
    held, right = values_shown(one.held, one.right)
    what = f"{one.argument} of {one.op}"
    return GivenValue(what, held, right, stale=False, left_by=None, how=None)


def values_shown(held: Tensor, right: Tensor) -> tuple[str, str]:
    """Return the first values of two tensors as text. For equal shapes, the first that differ."""
    first = 0
    if held.shape == right.shape and held.dtype == right.dtype:
        different = (bits(held) != bits(right)).flatten().nonzero()
        first = int(different[0]) if len(different) else 0
    return first_values(held.flatten()[first:]), first_values(right.flatten()[first:])


def first_values(values: Tensor) -> str:
    """Return the first values of a flat tensor as text."""
    if values.is_floating_point():
        return "[" + ", ".join(f"{one:.4g}" for one in values[:4].tolist()) + "]"
    return str(values[:8].tolist())


def wrong_outputs(right: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> list[Replaced]:
    """Return the output whose live rows differ, if any, with other such outputs.

    A failed forward gave no outputs, which therefore count as equal.
    """
    found = []
    for name, values in right.items():
        rows = held.get(name, values)[: len(values)]
        if rows.shape == values.shape and not rows.equal(values):
            found.append((name, rows.clone(), values.to(rows).clone()))
    if not found:
        return []
    (name, wrong, fixed), *others = found
    pairs = tuple((one, other) for _, one, other in others)
    return [Replaced("the forward", name, wrong, fixed, {}, others=pairs)]
