"""The op interface: all arithmetic of the model, one result per row whatever the batch.

Both worlds call the same ops, or their bits could not be compared. Every op is
batch-invariant: the bits of a row depend on that row's inputs alone, never on
how many rows there are or where the row stands. The interface can keep a log of
the ops it ran, because a dispatch mode does not see Triton launches.

Shapes: T rows (tokens), H hidden, O output features, V vocabulary, Q query heads, G KV
heads, D head dimension, S slots of a sub-pool, N listed slots. Unless an op says
otherwise, floating tensors have the model's dtype (float32 or bfloat16); every op
computes in float32 and rounds its result once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from operator import is_not
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from paritybit.reference.quantisation import Quantisation
from torch import Tensor

STATE_GAIN = 0.5
"""How much of a token's embedding is added to the recurrent state."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class OpCall:
    """One call of an op with the very tensors it was given, by position, and its result."""

    name: str
    inputs: tuple[Any, ...]
    result: Any


class Reused:
    """What an op made of arguments, kept for its next call in a forward if that is given the same.

    The same are the very same tensors, which this keeps alive, so that no other one is taken
    for them.
    """

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self.made: Any = None

    def of(self, given: tuple[Any, ...], make: Callable[..., Result]) -> Result:
        """Return what `make` gives for some arguments, kept if they are those of the last call."""
        if len(given) != len(self.given) or any(map(is_not, given, self.given)):
            self.given, self.made = given, make(*given)
        made: Result = self.made
        return made


def operation(
    method: Callable[Concatenate["Ops", Arguments], Result],
) -> Callable[Concatenate["Ops", Arguments], Result]:
    """Add the op's name to its `Ops.log`, and the call to its `Ops.calls`, while one is kept."""
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
    """Raise ValueError unless tensors are contiguous: a kernel reads them from their first byte."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            shape = list(tensor.shape)
            raise ValueError(f"a kernel reads {shape} elements, which are not contiguous")


class Ops(Quantisation, ABC):
    """The ops of the decoder.

    `log` lists op names in call order while it is not None, and `calls` the whole calls,
    whose tensors stay alive as long as it does. While `given` is not None, an op takes the
    arguments that it returns for the op's name and arguments.
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
        """Return what tokens are given beside their embeddings, float32 [T, H].

        That is the token's recurrent state, its row of `states` [T, H], where `state_mask`
        (bool) is set, and row `encoder_lens` of `encoder_table`, which stands for cross
        attention. Mask and lengths have shape [T]. Raises ValueError unless they are contiguous.
        """
        require_contiguous(state_mask, encoder_lens)
        return self._payload(states, state_mask, encoder_table, encoder_lens)

    @operation
    def adapt(
        self, payload: Tensor, adapters: Tensor, input_ids: Tensor, down: Tensor, up: Tensor
    ) -> Tensor:
        """Return payload float32 [T, H] plus what each token's adapter adds to its embedding.

        `adapters` and `input_ids` are int64 [T]. `down` [A, V, 2] has the row of a token in the
        space of an adapter, `up` [A, 2, H] that space. Elementwise, so that rows are independent.
        """
        row = adapters * down.shape[1] + input_ids
        shrunk = down.view(-1, 2).index_select(0, row).float().unsqueeze(2)
        first, second = (shrunk * up.index_select(0, adapters).float()).unbind(1)
        return payload + (first + second)

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
        """Return the recurrent state of every token after it has been taken in, [T, H].

        That is decay * (the state before the token) + STATE_GAIN * table[input_ids], rounded
        once. The state before token t is that of token parents[t], which is less than t; where
        that is -1 it is row sources[t] of `states` [N, H]; where that is -1 too it is zero, and
        nothing is loaded. No path of parents is longer than `longest` tokens. The index tensors
        are int64 [T], `table` is [V, H], `decay` float32 [H]. Raises ValueError unless the index
        tensors are contiguous.
        """
        require_contiguous(sources, parents, input_ids)
        return self._scan_states(states, sources, parents, longest, table, input_ids, decay)

    @operation
    def store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        """Write `values` [T, W] into rows `rows` (int64 [T]) of `table` [N, W].

        Where several of them name one row, the highest wins. Raises ValueError unless `rows` is
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
        """Return the heads that RMSNorm(hidden) times weight [A D, H] transposed is made of.

        The first `turned` of the A heads, [T, turned, D], are rotated, first half against second,
        by `rotary` [2, T, D/2]; the others, [T, A - turned, D], are as they are.
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

        `gate_up` is [T, 2 I], gate first. Rows at or beyond `row_limit` (int32 [1])
        keep their residual, as experts skip the rows that are not real tokens.
        """
        return self._gated_linear_add(gate_up, weight, residual, activation, row_limit)

    @operation
    def limit_rows(self, rows: Tensor, row_limit: Tensor) -> Tensor:
        """Return `rows` [T, O] with the rows at or beyond `row_limit` (int32 [1]) zero."""
        return self._limit_rows(rows, row_limit)

    @operation
    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax of every row of `logits` [T, V], float32 [T, V]."""
        return self._probabilities(logits)

    @operation
    def largest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` largest of every row of `values` float32 [T, N], and their places.

        Both are [T, count], in descending order; places are int64. Equal values are ordered by
        place, lowest first. A NaN counts as -inf, and is returned as -inf. Places are in
        0 .. N-1 and distinct whatever the values; beyond N of them the last repeats. `count`
        is positive.
        """
        return self._largest(values, count)

    @operation
    def store_kv(
        self, cache: Tensor, loc: Tensor, loc_dtype: torch.dtype, key: Tensor, value: Tensor
    ) -> None:
        """Write key and value [T, G, D] into slots `loc` of `cache` [2, S, G, D].

        The ABI is fixed: `loc` is read as `loc_dtype` from its first byte on, as a
        compiled kernel reads a raw pointer; another dtype is reinterpreted, never
        converted. Where several rows name one slot, the highest row wins. Raises ValueError
        for a `loc` that is not contiguous: its first bytes would not be its first values.
        """
        require_contiguous(loc)
        # To ask costs less than a view, or a part, that is what it is of.
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

        Row t attends to slots[begin[t]:end[t]] (at most `max_keys`) of `cache`
        [2, S, G, D], in list order; rows may share places of the list. With `mask`
        (bool [M], M > 0) and `mask_start` (int64 [T]), both or neither, its i-th key
        takes part only if mask[mask_start[t] + i] is set. A row of which no key takes
        part gives zeros. `sinks` float32 [Q] adds a logit that takes weight and has no
        value. Keys that take no part are never loaded, and mask bits of no listed key have
        no effect. A row's bits depend on its query, on its keys in list order and on which
        take part: a mask that is all set changes none.

        `begin` and `end` are [T], `slots` is [N], all int32 or int64; every entry of `slots` is a
        slot of the cache, listed or not. Raises ValueError unless they, and those of the mask, are
        contiguous.

        `reused` is handed to the layers of one forward that may read by the same lists: nobody
        writes to these from the first of them to the last.

        A cache [2, S, G, D + 1] is quantised: what its listed slots stand for is read.
        """
        require_contiguous(begin, end, slots)
        if cache.shape[-1] != query.shape[-1]:
            cache = self.dequantised(cache.index_select(1, slots.long()))
            slots = torch.arange(slots.shape[0], device=slots.device)
        if mask is not None and mask_start is not None:
            require_contiguous(mask, mask_start)
        lists = begin, end, slots, sinks, max_keys, mask, mask_start
        return self._attention(query, cache, *lists, reused or Reused())

    def as_stored(self, cache: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return key and value [T, G, D] as a cache holds them: quantised if it has scales."""
        if cache.shape[-1] == key.shape[-1]:
            return key, value
        return self.quantise(key), self.quantise(value)

    @operation
    def quantise(self, heads: Tensor) -> Tensor:
        """Return heads [T, G, D] as whole numbers, and a scale behind them: [T, G, D + 1]."""
        return self.quantised(heads)

    @abstractmethod
    def _payload(
        self, states: Tensor, state_mask: Tensor, encoder_table: Tensor, encoder_lens: Tensor
    ) -> Tensor: ...

    @abstractmethod
    def _scan_states(
        self,
        states: Tensor,
        sources: Tensor,
        parents: Tensor,
        longest: int,
        table: Tensor,
        input_ids: Tensor,
        decay: Tensor,
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
        self,
        query: Tensor,
        cache: Tensor,
        begin: Tensor,
        end: Tensor,
        slots: Tensor,
        sinks: Tensor | None,
        max_keys: int,
        mask: Tensor | None,
        mask_start: Tensor | None,
        reused: Reused,
    ) -> Tensor: ...
