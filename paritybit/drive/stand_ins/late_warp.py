"""Decides what a warp does that loads a scalar after its program has overwritten it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LARGEST = 2**20
"""The most elements in the record of a program. A program with more is not judged."""


class Differs(BaseException):
    """The late warp does something else: its predicate, and the line of the kernel, if known.

    It is a BaseException because the interpreter converts other exceptions in functions of kernels.
    """

    def __init__(self, effect: str, source: str = "") -> None:
        super().__init__(effect)
        self.effect, self.source = effect, source


class Unknown(BaseException):
    """What the late warp does cannot be known."""


BLOCK_STORE, BLOCK_ATOMIC = "a block store", "a block atomic"

Effect = tuple[str, Sequence[Any]]
"""What the warps of a program do together: its kind, and the arrays that it depends on."""


@dataclass(frozen=True)
class Overwritten:
    """A scalar that a program overwrote.

    A late warp may get `value` from the loads `first` to `until` - 1 of its address. `source` is
    the line of the store.
    """

    first: int
    until: int
    value: Any
    source: str


@dataclass
class Program:
    """The record of a program.

    - `loads`: the addresses, mask and values of each load. Arrays of one element are scalars.
    - `effects`: block stores, atomics of blocks, and operations that imply a barrier.
    - `atomics`: the results of the atomics, by the addresses.
    - `since`: the number of loads before the last barrier.
    - `size`: the number of elements.
    """

    loads: list[tuple[Any, Any, Any]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    atomics: dict[bytes, list[Any]] = field(default_factory=dict)
    overwritten: list[Overwritten] = field(default_factory=list)
    since: int = 0
    size: int = 0
    stores: bool = False

    def load(self, pointers: Any, mask: Any, values: Any) -> None:
        """Record a load."""
        self.loads.append((pointers, mask, values))
        self.size += pointers.size

    def store(self, pointers: Any, values: Any, mask: Any, line: Callable[[], str]) -> None:
        """Record a store before it is made."""
        if pointers.size > 1:
            self._effect(BLOCK_STORE, (mask, pointers, values))
        elif mask.all():
            self.stores = True
            for number, (loaded, on, held) in enumerate(self.loads[self.since :], self.since):
                if loaded.size == 1 and on.all() and loaded.item() == pointers.item():
                    new = values.astype(held.dtype).reshape(held.shape)
                    if new.tobytes() != held.tobytes():
                        found = Overwritten(number, len(self.loads), new, line())
                        self.overwritten.append(found)
                    break

    def atomic(self, pointers: Any, operands: Sequence[Any], result: Any) -> None:
        """Record an atomic."""
        self.atomics.setdefault(pointers.tobytes(), []).append(result)
        if pointers.size > 1:
            self._effect(BLOCK_ATOMIC, operands)
        self.since = len(self.loads)

    def exchange(self, what: str, operands: Sequence[Any]) -> None:
        """Record an operation that implies a barrier."""
        self._effect(what, operands)
        self.since = len(self.loads)

    def _effect(self, what: str, operands: Sequence[Any]) -> None:
        self.effects.append((what, operands))
        self.size += sum(one.size for one in operands)

    @property
    def has_both(self) -> bool:
        """Whether the program loads a scalar and stores a scalar."""
        return self.stores and any(where.size == 1 for where, _, _ in self.loads)


def bits(what: str, arrays: Sequence[Any]) -> list[bytes]:
    """Return the bits that matter of an effect: none where the mask of a store is False."""
    if what == BLOCK_STORE:
        mask = arrays[0]
        arrays = (mask, *(np.where(mask, one, np.zeros((), one.dtype)) for one in arrays[1:]))
    return [one.tobytes() for one in arrays]


class LateWarp:
    """Runs a program as the warp that loads an overwritten scalar late.

    A load gives what it gave the program, or the new value. A load that the program did not make
    reads the memory of the launch's tensors. No memory is written. The warp does harm if it

    - loads from memory outside of all tensors of the launch, or
    - has other effects: other block stores, atomics, reductions or barriers, or in other order, or
      with other values.

    Scalar stores and scalar atomics are not compared: a late warp does not execute them. A counter
    that is loaded, incremented and stored is no race, nor is a load whose value only decides what
    is stored as a scalar.

    `memory` has the first address of each tensor's storage, and the address behind its end.
    """

    def __init__(
        self,
        program: Program,
        given: Overwritten,
        memory: Sequence[tuple[int, int]],
        handle: Callable[[Any, Any], Any],
        line: Callable[[], str],
    ) -> None:
        self.program, self.given, self.handle, self.line = program, given, handle, line
        self.memory = memory
        self.raced = program.loads[given.first][0].item()
        self.source = ""
        """The line of the load."""
        self.known: dict[bytes, list[int]] = {}
        for number, (pointers, mask, _) in enumerate(program.loads):
            self.known.setdefault(name_of(pointers, mask), []).append(number)
        self.turns: Counter[bytes] = Counter()
        self.done = 0

    def load(self, pointers: Any, mask: Any, other: Any, run: Callable[[], Any]) -> Any:
        """Return the result of a load. `mask` is True somewhere. `run` makes the load."""
        name = name_of(pointers.data, mask.data)
        numbers = self.known.get(name)
        if numbers is None:
            if not self._holds(pointers.data[mask.data], pointers.get_element_ty()):
                raise Differs("loads from outside of all tensors", self.line())
            return run()
        number = numbers[self._turn(name, len(numbers))]
        where, _, values = self.program.loads[number]
        if where.size == 1 and where.item() == self.raced:
            if number == self.given.first:
                self.source = self.line()
            if self.given.first <= number < self.given.until:
                values = self.given.value
        if other is not None:
            values = np.where(mask.data, values, other.data.astype(values.dtype))
        return self.handle(values, pointers.get_element_ty())

    def store(self, pointers: Any, values: Any, mask: Any) -> None:
        """Compare a block store."""
        if pointers.size > 1:
            self._compare(BLOCK_STORE, (mask, pointers, values))

    def atomic(self, pointers: Any, operands: Sequence[Any]) -> Any:
        """Compare an atomic of a block, and return the result that the program got."""
        if pointers.size > 1:
            self._compare(BLOCK_ATOMIC, operands)
        name = pointers.tobytes()
        results = self.program.atomics.get(name)
        if results is None:
            raise Unknown
        return results[self._turn(name, len(results))]

    def exchange(self, what: str, operands: Sequence[Any]) -> None:
        """Compare an operation that implies a barrier."""
        self._compare(what, operands)

    def end(self) -> None:
        """Compare the end."""
        if self.done < len(self.program.effects):
            raise Differs(f"ends before {self.program.effects[self.done][0]}")

    def _holds(self, addresses: Any, kind: Any) -> bool:
        """Return whether the memory of the launch's tensors has all addresses of a load."""
        size = kind.primitive_bitwidth // 8
        inside = [(addresses >= first) & (addresses + size <= end) for first, end in self.memory]
        return bool(np.any(inside, axis=0).all()) if inside else False

    def _turn(self, name: bytes, count: int) -> int:
        """Return which of `count` equal accesses this is. Stops a warp that would never end."""
        self.turns[name] += 1
        if self.turns[name] > LARGEST:
            raise Unknown
        return min(self.turns[name], count) - 1

    def _compare(self, what: str, operands: Sequence[Any]) -> None:
        if self.done >= len(self.program.effects):
            raise Differs(f"executes {what} more", self.line())
        expected, arrays = self.program.effects[self.done]
        if expected != what:
            raise Differs(f"executes {what} in place of {expected}", self.line())
        if bits(what, operands) != bits(what, arrays):
            raise Differs(f"executes {what} with other operands", self.line())
        self.done += 1


def name_of(pointers: Any, mask: Any) -> bytes:
    """Return a name for the addresses of a load."""
    return bytes(np.where(mask, pointers, 0).tobytes() + mask.tobytes())
