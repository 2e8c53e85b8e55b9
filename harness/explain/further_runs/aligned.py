"""The first op whose rows differ between two runs with other orders or subsets of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paritybit.harness.explain.facts import FirstDifference
from paritybit.harness.explain.first_difference import paired, results_of
from paritybit.harness.explain.provenance import layer_of
from paritybit.harness.lockstep.bits import bits, first_index, hex_bits
from paritybit.reference.ops import OpCall
from paritybit.reference.pool import KVPools
from torch import Tensor

STORED = {"store_kv": ("K", "V"), "store_rows": ("value",)}
"""The stored tensors of ops without a result. Each is last among its op's inputs."""


@dataclass(frozen=True)
class GivenRows:
    """The rows that an op gave, or stored: each tensor by name."""

    op: str
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, call: OpCall) -> "GivenRows":
        """Return the rows of a call."""
        if call.name in STORED:
            stored = STORED[call.name]
            return cls(call.name, dict(zip(stored, call.inputs[-len(stored) :], strict=True)))
        results = results_of(call)
        names = ["result"] if len(results) == 1 else [f"result {i}" for i in range(len(results))]
        return cls(call.name, dict(zip(names, results, strict=True)))

    def cloned(self) -> "GivenRows":
        """Return a copy of the rows, which no later run overwrites."""
        return GivenRows(self.op, {name: rows.clone() for name, rows in self.tensors.items()})


@dataclass(frozen=True)
class Layered:
    """The location of a difference if its op works on a cache: model, layer and kind, in words."""

    model: str | None = None
    layer: int | None = None
    kind: str | None = None

    @classmethod
    def of(cls, call: OpCall, pools: KVPools) -> "Layered":
        """Return where an op works."""
        if call.name not in ("attention", "store_kv"):
            return cls()
        cache = call.inputs[1 if call.name == "attention" else 0]
        role, layer, kind = layer_of(cache, pools)
        return cls(str(role), layer, str(kind))


def rows_differ(
    usual: GivenRows, other: GivenRows, rows: Callable[[int], Sequence[int] | None], at: Layered
) -> FirstDifference | None:
    """Return the first bits that differ in two calls of one op.

    `rows` maps the number of rows of the usual call to those that correspond to the first rows of
    the other call. It returns None if that is not known, and then no row is compared.
    """
    for name, left in usual.tensors.items():
        right, chosen = other.tensors.get(name), rows(len(left))
        if right is None or chosen is None or len(right) < len(chosen):
            continue
        one, two = left[list(chosen)], right[: len(chosen)]
        different = bits(one) != bits(two)
        if different.any():
            place = first_index(different)
            return FirstDifference(
                op=usual.op,
                model=at.model,
                layer=at.layer,
                kind=at.kind,
                tensor=name,
                row=chosen[place[0]],
                live=True,
                slot=None,
                head=place[1] if len(place) > 2 else None,
                element=place[-1],
                eager_bits=hex_bits(one[place]),
                graph_bits=hex_bits(two[place]),
            )
    return None


def first_aligned(
    usual: Sequence[OpCall],
    other: Sequence[OpCall],
    rows: Callable[[int], Sequence[int] | None],
    pools: KVPools,
) -> FirstDifference | None:
    """Return the first bits that differ between two runs over the same pools. See `rows_differ`."""
    for _, left, right in paired(usual, other):
        if left is not None:
            found = rows_differ(
                GivenRows.of(left), GivenRows.of(right), rows, Layered.of(right, pools)
            )
            if found is not None:
                return found
    return None


def live(count: int) -> Callable[[int], Sequence[int]]:
    """Return a function that returns the first `count` rows, or all if there are fewer."""
    return lambda rows: range(min(count, rows))
