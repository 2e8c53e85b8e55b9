"""The op interface: all arithmetic of the model.

Both runs call the same ops, so their bits can be compared. Every op is batch-invariant: the bits of
a row depend only on that row's inputs, not on the number of rows or the row's place. The interface
can log its ops, because a dispatch mode does not see Triton launches.

Shapes: T rows (tokens), H hidden, O output features, V vocabulary, Q query heads, G KV heads, D
head dimension, S slots of a sub-pool, N listed slots. Floating tensors have the model's dtype
(float32 or bfloat16) unless an op says otherwise. Every op computes in float32 and rounds its
result once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from operator import is_not
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

STATE_GAIN = 0.5
"""The share of a token's embedding that is added to the recurrent state."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class OpCall:
    """One call of an op: its arguments by position, not copied, and its result."""

    name: str
    inputs: tuple[Any, ...]
    result: Any


class Paths(NamedTuple):
    """How the states of tokens follow from one another: see `Ops.scan_states`."""

    sources: Tensor
    parents: Tensor
    longest: int


class ListedKeys(NamedTuple):
    """The keys that the rows of an attention read: see `Ops.attention`."""

    begin: Tensor
    end: Tensor
    slots: Tensor
    mask: Tensor | None
    mask_start: Tensor | None
    max_keys: int


class Reused:
    """A one-entry cache of what an op derives from its arguments, for several calls in one forward.

    Arguments are compared by identity, and kept alive so that an identity is not used again.
    """

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self.made: Any = None

    def of(self, given: tuple[Any, ...], make: Callable[..., Result]) -> Result:
        """Return `make(*given)`, or the last result if `given` are the same objects."""
        if len(given) != len(self.given) or any(map(is_not, given, self.given)):
            self.given, self.made = given, make(*given)
        made: Result = self.made
        return made


def operation(
    method: Callable[Concatenate["Ops", Arguments], Result],
) -> Callable[Concatenate["Ops", Arguments], Result]:
    """Add the op's name to `Ops.log`, and its call to `Ops.calls`, if they are kept."""
    name = method.__name__

    @wraps(method)
    def logged(self: "Ops", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if self.log is not None:
            self.log.append(name)
        if self.given is not None:
            args = self.given(name, args)  # type: ignore[assignment]
        result = method(self, *args, **kwargs)
        if self.calls is not None:
            self.calls.append(OpCall(name, args, result))
        return result

    return logged


def require_contiguous(*tensors: Tensor) -> None:
    """Raise ValueError unless all tensors are contiguous: a kernel reads from their first byte."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            shape = list(tensor.shape)
            raise ValueError(
                f"a kernel cannot read a tensor of shape {shape} that is not contiguous"
            )


class Ops(ABC):
    """The ops of the decoder.

    - `log`: if not None, each call adds its op's name.
    - `calls`: if not None, each call is added. Its tensors stay alive.
    - `given`: if not None, a function from an op's name and arguments to the arguments to use.
    """

    def __init__(self) -> None:
        self.log: list[str] | None = None
        self.calls: list[OpCall] | None = None
        self.given: Callable[[str, tuple[Any, ...]], tuple[Any, ...]] | None = None

    def record(self, name: str) -> None:
        """Add `name` to the log, if one is kept."""
        if self.log is not None:
            self.log.append(name)

    @operation
    def payload(
        self,
        states: Tensor,
        state_mask: Tensor,
        encoder_table: Tensor,
        encoder_lens: Tensor,
    ) -> Tensor:
        """Return what is added to the embeddings of tokens, float32 [T, H].

        That is row t of `states` [T, H] if `state_mask` (bool [T]) is set, plus row `encoder_lens`
        (int64 [T]) of `encoder_table`, which models cross attention. Raises ValueError unless mask
        and lengths are contiguous.
        """
        require_contiguous(state_mask, encoder_lens)
        return self._payload(states, state_mask, encoder_table, encoder_lens)

    @operation
    def scan_states(
        self,
        states: Tensor,
        sources: Tensor,
        parents: Tensor,
        longest: int,
        table: Tensor,
        input_ids: Tensor,
        decay: Tensor,
    ) -> Tensor:
        """Return the recurrent state after each token, [T, H].

        It is decay * (state before the token) + STATE_GAIN * table[input_ids], rounded once. The
        state before token t is:

        - the state of token parents[t], which is less than t
        - row sources[t] of `states` [N, H] if parents[t] is -1
        - zero, without a load, if both are -1

        No path of parents is longer than `longest` tokens. The index tensors are int64 [T], `table`
        is [V, H], `decay` float32 [H]. Raises ValueError unless the index tensors are contiguous.
        """
        require_contiguous(sources, parents, input_ids)
        paths = Paths(sources, parents, longest)
        return self._scan_states(states, paths, table, input_ids, decay)

    @operation
    def store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        """Write `values` [T, W] into rows `rows` (int64 [T]) of `table` [N, W].

        If several values have the same row, the last one wins. Raises ValueError unless `rows` is
        contiguous.
        """
        require_contiguous(rows)
        self._store_rows(table, rows, values)

    @operation
    def embed(self, table: Tensor, input_ids: Tensor, payload: Tensor) -> Tensor:
        """Return rows `input_ids` [T] of `table` [V, H] plus `payload` float32 [T, H]: [T, H]."""
        return self._embed(table, input_ids, payload)

    @operation
    def rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        """Return cos and sin, float32 [2, T, D/2], of `positions` int64 [P, T].

        Rotary pair d turns by positions[section[d]] * frequency[d] (radians);
        `section` is int64 [D/2], `frequency` float32 [D/2].
        """
        return self._rotary(positions, section, frequency)

    @operation
    def norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        """Return RMSNorm(hidden [T, H]; norm [H]) times weight [O, H] transposed: [T, O]."""
        return self._norm_linear(hidden, norm, weight)

    @operation
    def project_heads(
        self, hidden: Tensor, norm: Tensor, weight: Tensor, rotary: Tensor, turned: int
    ) -> tuple[Tensor, Tensor]:
        """Return RMSNorm(hidden) times weight [A D, H] transposed, as rotated and other heads.

        The first `turned` of the A heads, [T, turned, D], are rotated by `rotary` [2, T, D/2],
        first half against second. The others, [T, A - turned, D], are not.
        """
        return self._project_heads(hidden, norm, weight, rotary, turned)

    @operation
    def linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        """Return residual [T, H] + inputs [T, I] times weight [H, I] transposed."""
        return self._linear_add(inputs, weight, residual)

    @operation
    def gated_linear_add(
        self,
        gate_up: Tensor,
        weight: Tensor,
        residual: Tensor,
        activation: str,
        row_limit: Tensor,
    ) -> Tensor:
        """Return residual + (activation(gate) * up) times weight [H, I] transposed.

        `gate_up` is [T, 2 I], gate first. Rows at or beyond `row_limit` (int32 [1]) keep their
        residual, as experts skip padded rows.
        """
        return self._gated_linear_add(gate_up, weight, residual, activation, row_limit)

    @operation
    def limit_rows(self, rows: Tensor, row_limit: Tensor) -> Tensor:
        """Return `rows` [T, O] with zeros in the rows at or beyond `row_limit` (int32 [1])."""
        return self._limit_rows(rows, row_limit)

    @operation
    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax of every row of `logits` [T, V], float32 [T, V]."""
        return self._probabilities(logits)

    @operation
    def largest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` largest of every row of `values` float32 [T, N], and their places.

        Both are [T, count], in descending order. Places are int64. Equal values are ordered by
        place, lowest first. A NaN counts as -inf, and is returned as -inf. Places are in 0 .. N-1
        and distinct whatever the values; if `count` exceeds N, the last place repeats. `count` is
        positive.
        """
        return self._largest(values, count)

    @operation
    def store_kv(
        self, cache: Tensor, loc: Tensor, loc_dtype: torch.dtype, key: Tensor, value: Tensor
    ) -> None:
        """Write key and value [T, G, D] into slots `loc` of `cache` [2, S, G, D].

        The ABI is fixed: the bytes of `loc` are read as `loc_dtype`, as a compiled kernel reads a
        raw pointer. Another dtype is reinterpreted, not converted. If several rows have the same
        slot, the last one wins. Raises ValueError unless `loc` is contiguous.
        """
        require_contiguous(loc)
        # The check is cheaper than a view that changes nothing.
        slots = loc if loc.dtype is loc_dtype else loc.view(loc_dtype)
        slots = slots if slots.shape == key.shape[:1] else slots[: key.shape[0]]
        self._store_kv(cache, slots, key, value)

    @operation
    def attention(
        self,
        query: Tensor,
        cache: Tensor,
        begin: Tensor,
        end: Tensor,
        slots: Tensor,
        sinks: Tensor | None,
        max_keys: int,
        mask: Tensor | None = None,
        mask_start: Tensor | None = None,
        *,
        reused: Reused | None = None,
    ) -> Tensor:
        """Return softmax attention [T, Q, D] of every query row over its listed slots.

        Row t attends to slots[begin[t]:end[t]] (at most `max_keys`) of `cache` [2, S, G, D], in
        list order. Rows may share entries of the list. `begin` and `end` are [T], `slots` is [N],
        all int32 or int64. Every entry of `slots` must be a slot of the cache, even if no row lists
        it.

        With `mask` (bool [M], M > 0) and `mask_start` (int64 [T]), both or neither, key i of row t
        takes part only if mask[mask_start[t] + i] is set. Mask bits beyond a row's keys have no
        effect. A row without keys that take part gives zeros. `sinks` float32 [Q] adds a logit that
        has weight but no value.

        Keys that take no part are never loaded. A row's bits depend only on its query, its keys in
        list order, and which of them take part. A mask with all bits set changes nothing.

        `reused` is shared by layers of one forward that may read with the same lists. The lists
        must not change between these layers.

        Raises ValueError unless the lists and the mask are contiguous.
        """
        require_contiguous(begin, end, slots)
        if mask is not None and mask_start is not None:
            require_contiguous(mask, mask_start)
        keys = ListedKeys(begin, end, slots, mask, mask_start, max_keys)
        return self._attention(query, cache, keys, sinks, reused or Reused())

    @abstractmethod
    def _payload(
        self, states: Tensor, state_mask: Tensor, encoder_table: Tensor, encoder_lens: Tensor
    ) -> Tensor: ...

    @abstractmethod
    def _scan_states(
        self, states: Tensor, paths: Paths, table: Tensor, input_ids: Tensor, decay: Tensor
    ) -> Tensor: ...

    @abstractmethod
    def _store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None: ...

    @abstractmethod
    def _embed(self, table: Tensor, input_ids: Tensor, payload: Tensor) -> Tensor: ...

    @abstractmethod
    def _rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor: ...

    @abstractmethod
    def _norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor: ...

    @abstractmethod
    def _project_heads(
        self, hidden: Tensor, norm: Tensor, weight: Tensor, rotary: Tensor, turned: int
    ) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def _linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor: ...

    @abstractmethod
    def _gated_linear_add(
        self,
        gate_up: Tensor,
        weight: Tensor,
        residual: Tensor,
        activation: str,
        row_limit: Tensor,
    ) -> Tensor: ...

    @abstractmethod
    def _limit_rows(self, rows: Tensor, row_limit: Tensor) -> Tensor: ...

    @abstractmethod
    def _probabilities(self, logits: Tensor) -> Tensor: ...

    @abstractmethod
    def _largest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None: ...

    @abstractmethod
    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None, reused: Reused
    ) -> Tensor: ...
