"""The supported operations of Triton's language, on numpy arrays."""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

PHILOX, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
STEP = np.float32(4.6566127342e-10)
"""The multipliers of Philox, the increments of its keys, and the distance of random numbers."""


class Value:
    """An array, or a number of fixed width. Operators have the results of Triton's operators."""

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = data

    def to(self, dtype: Any, *unused: Any, **named: Any) -> Any:
        """Return the value in another type, or a pointer to its address."""
        if isinstance(dtype, PointerType):
            return Pointer(Addressed(int(self.data), np.dtype(dtype.element)), np.int64(0))
        return Value(self.data.astype(dtype))

    def __getitem__(self, places: Any) -> "Value":
        return Value(self.data[places])

    def __bool__(self) -> bool:
        return bool(self.data)

    def __index__(self) -> int:
        return int(self.data)

    __int__ = __index__

    def __hash__(self) -> int:
        return id(self)

    def reshape(self, *shape: int) -> "Value":
        return Value(self.data.reshape(shape))

    shape = property(lambda self: tuple(self.data.shape))
    dtype = property(lambda self: self.data.dtype.type)

    def __neg__(self) -> "Value":
        return Value(-self.data)

    def __invert__(self) -> "Value":
        return Value(~self.data)


class Pointer:
    """An address, or an array of addresses: indices into an array of memory."""

    __slots__ = ("memory", "place")

    def __init__(self, memory: Any, place: Any) -> None:
        self.memory, self.place = memory, place

    def __add__(self, more: Any) -> "Pointer":
        return Pointer(self.memory, self.place + bare(more))

    __radd__ = __add__

    def __sub__(self, less: Any) -> "Pointer":
        return Pointer(self.memory, self.place - bare(less))

    def __getitem__(self, places: Any) -> "Pointer":
        return Pointer(self.memory, self.place[places])

    @property
    def dtype(self) -> Any:
        """The pointer type, with the type of its target as `dtype.element_ty`."""
        return _ElementType(self.memory.dtype.type)

    def inside(self, places: Any) -> Any:
        """Return indices. Raises IndexError for an index outside of the memory."""
        if places.size and (places.min() < 0 or places.max() >= len(self.memory)):
            raise IndexError("a kernel accesses a tensor's memory out of bounds")
        return places


class PointerType:
    """The type of pointers to elements."""

    def __init__(self, element: Any, *unused: Any) -> None:
        self.element = element


class Addressed:
    """The memory at an address that a kernel read from memory. Its size is unknown."""

    def __init__(self, address: int, dtype: Any) -> None:
        self.address, self.dtype = address, dtype

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, places: Any) -> Any:
        near, first = self._near(places)
        return near[places - first]

    def __setitem__(self, places: Any, values: Any) -> None:
        near, first = self._near(places)
        near[places - first] = values

    def _near(self, places: Any) -> tuple[Any, int]:
        """Return the memory from the smallest to the largest index, and the smallest index."""
        if not places.size:
            return np.empty(0, self.dtype), 0
        first, count = int(places.min()), int(places.max() - places.min()) + 1
        size = self.dtype.itemsize
        held = (ctypes.c_char * (count * size)).from_address(self.address + first * size)
        return np.frombuffer(held, self.dtype), first


class Eighths:
    """Floats of eight bits, which numpy lacks. Kernels load and store them as float32."""

    dtype = np.dtype(np.float32)

    def __init__(self, held: Tensor) -> None:
        self.kind, self.bytes = held.dtype, held.view(torch.uint8).numpy()

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, places: Any) -> Any:
        held = torch.from_numpy(np.atleast_1d(self.bytes[places])).view(self.kind).float()
        return held.numpy().reshape(np.shape(places))

    def __setitem__(self, places: Any, values: Any) -> None:
        """Round to the nearest number."""
        most = torch.finfo(self.kind).max
        held = torch.from_numpy(np.atleast_1d(np.asarray(values, np.float32))).clamp(-most, most)
        self.bytes[places] = held.to(self.kind).view(torch.uint8).numpy().reshape(np.shape(values))


class _ElementType:
    def __init__(self, element: Any) -> None:
        self.element_ty = element


def bare(given: Any) -> Any:
    """Return the array of a value. Anything else is returned unchanged."""
    return given.data if isinstance(given, Value) else given


def wrapped(given: Any) -> Any:
    """Return a number with the width that Triton gives it. Other objects are unchanged."""
    if isinstance(given, bool | np.bool_):
        return Value(np.bool_(given))
    if isinstance(given, int):
        return Value(np.int32(given) if -(2**31) <= given < 2**31 else np.int64(given))
    return Value(np.float32(given)) if isinstance(given, float) else given


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two operands that numpy combines to the type that Triton gives the result."""
    one, other = (getattr(given, "dtype", None) for given in (left, right))
    if one is None or other is None or one == other:
        return left, right
    if (one.kind == "f") != (other.kind == "f"):
        return (left, right.astype(one)) if one.kind == "f" else (left.astype(other), right)
    if one.itemsize == other.itemsize and {one.kind, other.kind} == {"i", "u"}:
        return (left, right.astype(one)) if one.kind == "u" else (left.astype(other), right)
    return left, right


def _divided(left: Any, right: Any) -> Any:
    """Divide. Integers are divided in float32."""
    found = np.true_divide(left, right)
    whole = {getattr(given, "dtype", np.dtype(bool)).kind for given in (left, right)} <= {*"biu"}
    return found.astype(np.float32) if whole else found


def _quotient(left: Any, right: Any) -> Any:
    """Divide integers, and round towards zero as in C."""
    found = np.floor_divide(left, right)
    return found + ((found < 0) & (found * right != left)).astype(found.dtype)


def _summed(dtype: Any) -> Any:
    """Return the type of a sum. Integers keep their width, but have at least 32 bits."""
    return np.dtype(np.int32) if dtype.itemsize < 4 and dtype.kind in "iub" else dtype


def _binary(function: Any, reflected: bool = False) -> Any:
    def applied(left: Value, right: Any) -> Any:
        if isinstance(right, Pointer):
            return NotImplemented
        one, other = _alike(left.data, bare(right))
        return Value(function(other, one) if reflected else function(one, other))

    return applied


OPERATORS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": _divided,
    "floordiv": _quotient,
    "mod": lambda left, right: left - _quotient(left, right) * right,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}
COMPARISONS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
for _name, _function in OPERATORS.items():
    setattr(Value, f"__{_name}__", _binary(_function))
    setattr(Value, f"__r{_name}__", _binary(_function, reflected=True))
for _name, _function in COMPARISONS.items():
    setattr(Value, f"__{_name}__", _binary(_function))


def _function_of(function: Any) -> Any:
    def applied(language: "Language", *given: Any, **unused: Any) -> Value:
        return Value(function(*map(bare, given)))

    return applied


def _reduction(function: Any, place: Any) -> Any:
    """Return a reduction of the language. `place` returns the index of its result."""

    def applied(
        language: "Language",
        given: Value,
        axis: int | None = None,
        return_indices: bool = False,
        **unused: Any,
    ) -> Any:
        language.exchange("a reduction", given.data)
        found = Value(function(given.data, axis=axis))
        at = place(given.data, axis=axis)
        return (found, Value(at.astype(np.int32))) if return_indices else found

    return applied


def loaded(pointer: Pointer, mask: Any, other: Any) -> Any:
    """Return what is at addresses, and `other` or 0 where the mask is False."""
    places = np.asarray(pointer.place)
    if mask is None:
        return pointer.memory[pointer.inside(places)]
    places, on = np.broadcast_arrays(places, bare(mask))
    on = on.astype(bool, copy=False)
    found = np.zeros(places.shape, pointer.memory.dtype)
    if other is not None:
        found[...] = other
    found[on] = pointer.memory[pointer.inside(places[on])]
    return found


def accessed(pointer: Pointer, mask: Any) -> Any:
    """Return addresses, and where the mask is True."""
    memory: Any = pointer.memory
    memory = memory.bytes if isinstance(memory, Eighths) else memory
    places = np.asarray(pointer.place, np.int64)
    known = isinstance(memory, Addressed)
    first = memory.address if known else memory.__array_interface__["data"][0]
    on = np.asarray(True if mask is None else bare(mask), bool)
    return np.broadcast_arrays(first + places * memory.dtype.itemsize, on)


class Language:
    """The module `tl` in kernels. `place` is the id of the current program, `sizes` the grid."""

    constexpr, pointer_type = int, PointerType
    extra: Any = None
    """Instructions of a GPU, which kernels use in branches that are not taken."""
    int1, int8, int16, int32, int64 = np.bool_, np.int8, np.int16, np.int32, np.int64
    uint8, uint32, uint64 = np.uint8, np.uint32, np.uint64
    float16, float32, float64, dtype = np.float16, np.float32, np.float64, np.dtype

    def __init__(self) -> None:
        self.place: Sequence[int] = (0, 0, 0)
        self.sizes: Sequence[int] = (1, 1, 1)
        self.program: Any = None
        """The record of the current program, if the check for races makes one."""

    def to_tensor(self, given: Any, check: bool = True) -> Any:
        return wrapped(given)

    def cast(self, given: Any, dtype: Any, *unused: Any, **named: Any) -> Any:
        return wrapped(given).to(dtype)

    def program_id(self, axis: int = 0) -> Value:
        return Value(np.int32(self.place[axis]))

    def num_programs(self, axis: int = 0) -> Value:
        return Value(np.int32(self.sizes[axis]))

    def arange(self, start: int, end: int) -> Value:
        return Value(np.arange(int(start), int(end), dtype=np.int32))

    def cdiv(self, count: Any, size: Any) -> Value:
        return Value(_quotient(bare(count) + (bare(size) - 1), bare(size)))

    def load(self, pointer: Pointer, mask: Any = None, other: Any = None, **unused: Any) -> Value:
        """Load from addresses. Where the mask is False, the result is `other` or 0."""
        made = partial(loaded, pointer, mask, bare(other))
        if self.program is None:
            return Value(made())
        return Value(self.program.load(*accessed(pointer, mask), made, bare(other)))

    def store(self, pointer: Pointer, value: Any, mask: Any = None, **unused: Any) -> None:
        """Store to addresses where the mask is True."""
        value = bare(value)
        if self.program is not None and not self.program.store(*accessed(pointer, mask), value):
            return
        places = np.asarray(pointer.place)
        if mask is None:
            pointer.memory[pointer.inside(places)] = value
            return
        places, on, held = np.broadcast_arrays(places, bare(mask), value)
        on = on.astype(bool, copy=False)
        pointer.memory[pointer.inside(places[on])] = held[on]

    def atomic_add(
        self, pointer: Pointer, value: Any, mask: Any = None, *unused: Any, **named: Any
    ) -> Value:
        """Add to addresses where the mask is True, and return what was there before."""
        on = True if mask is None else bare(mask)
        places, added, on = np.broadcast_arrays(np.asarray(pointer.place), bare(value), on)
        found = np.zeros(places.shape, pointer.memory.dtype)
        for at in zip(*np.nonzero(on), strict=True):
            place = pointer.inside(places[at])
            found[at] = pointer.memory[place]
            pointer.memory[place] += added[at]
        return Value(found)

    def exchange(self, what: str, *operands: Any) -> None:
        """Note an operation that passes values from warp to warp."""
        if self.program is not None:
            self.program.exchange(what, operands)

    def zeros(self, shape: Any, dtype: Any) -> Value:
        return self.full(shape, 0, dtype)

    def full(self, shape: Any, value: Any, dtype: Any) -> Value:
        return Value(np.full([int(size) for size in shape], bare(value), dtype))

    def sum(self, given: Value, axis: int | None = None, **unused: Any) -> Value:
        """Return the sum."""
        self.exchange("a reduction", given.data)
        return Value(given.data.sum(axis, dtype=_summed(given.data.dtype)))

    def cumsum(self, given: Value, axis: int = 0, **unused: Any) -> Value:
        """Return the sums up to each element."""
        self.exchange("a scan", given.data)
        return Value(given.data.cumsum(axis, dtype=_summed(given.data.dtype)))

    def dot(self, left: Value, right: Value, **unused: Any) -> Value:
        """Return the product of matrices in float32."""
        self.exchange("a product", left.data, right.data)
        return Value(np.matmul(left.data, right.data, dtype=np.float32))

    def static_range(self, *bounds: Any, **unused: Any) -> range:
        return range(*(int(bound) for bound in bounds))

    range = static_range

    def multiple_of(self, given: Any, *unused: Any) -> Any:
        """Return the argument."""
        return given

    max_contiguous = static_assert = multiple_of
    where, maximum, minimum = map(_function_of, (np.where, np.maximum, np.minimum))
    max, min = _reduction(np.nanmax, np.argmax), _reduction(np.nanmin, np.argmin)
    exp, log, sqrt, abs, zeros_like = map(
        _function_of, (np.exp, np.log, np.sqrt, np.abs, np.zeros_like)
    )
    sigmoid = _function_of(lambda given: 1 / (1 + np.exp(-given)))

    def clamp(self, given: Any, least: Any, most: Any, **unused: Any) -> Value:
        return Value(np.clip(*map(bare, (given, least, most))))

    def argmax(self, given: Value, axis: int, **unused: Any) -> Any:
        return self.max(given, axis=axis, return_indices=True)[1]

    def rand(self, seed: Any, offset: Any) -> Value:
        """Return random numbers in [0, 1): ten rounds of Philox, as in Triton."""
        word = 2**32 - 1
        first, count = (np.asarray(bare(given)).astype(np.uint64) for given in (seed, offset))
        key, other = first & word, first >> 32
        a: Any
        a, b, c, d = count & word, count >> 32, 0 * count, 0 * count
        for _ in range(10):
            low, high = a * PHILOX[0], c * PHILOX[1]
            a, b, c, d = high >> 32 ^ b ^ key, high & word, low >> 32 ^ d ^ other, low & word
            key, other = key + WEYL[0] & word, other + WEYL[1] & word
        bits = a.astype(np.uint32).view(np.int32)
        return Value(np.where(bits < 0, -bits - 1, bits).astype(np.float32) * STEP)

    def reshape(self, given: Value, *shape: int) -> Value:
        return given.reshape(*shape)

    def debug_barrier(self) -> None:
        """Do nothing: a program is one thread."""
        self.exchange("a barrier")


LANGUAGE = Language()
