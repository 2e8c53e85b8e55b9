"""The ops: all arithmetic of the model.

The eager and the graph run call the same ops, so their bits can be compared. Every op is
batch-invariant: the bits of a row depend only on that row's inputs, not on the number of rows or
the row's place. A product is a batch of products, one per row, each of the same shape whatever the
batch; `F.linear` is not used, because its bits change with the batch size. On a CPU all widths must
be multiples of LANES, so that all rows are aligned alike. On CUDA, `reference/cuda_ops.py` replaces
the ops whose bits, or order of writes, depend on the batch there.

The ops can be logged, because a dispatch mode does not see Triton launches.

Shapes: T rows (tokens), H hidden, O output features, V vocabulary, Q query heads, G KV heads, D
head dimension, S slots of a sub-pool, N listed slots. Floating tensors have the model's dtype
(float32 or bfloat16) unless an op says otherwise. Every op computes in float32 and rounds its
result once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import silu

STATE_GAIN = 0.5
"""The share of a token's embedding that is added to the recurrent state."""

NORM_EPSILON = 1e-6
COUNTING = 4096
LANES = 16
"""Float32 elements in the longest vectors of a CPU. A softmax over whole ones is twice as fast."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class OpCall:
    """One call of an op: its arguments by position, not copied, and its result."""

    name: str
    inputs: tuple[Any, ...]
    result: Any


class ListedKeys(NamedTuple):
    """The keys that the rows of an attention read: see `Ops.attention`."""

    begin: Tensor
    end: Tensor
    slots: Tensor
    max_keys: int


def operation(
    method: Callable[Concatenate["Ops", Arguments], Result],
) -> Callable[Concatenate["Ops", Arguments], Result]:
    """Add the op's name to `Ops.log`, and its call to `Ops.calls`, if they are kept."""
    name = method.__name__

    @wraps(method)
    def logged(self: "Ops", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        self.record(name)
        result = method(self, *args, **kwargs)
        if self.calls is not None:
            self.calls.append(OpCall(name, args, result))
        return result

    return logged


class Ops:
    """The ops of the decoder, in torch, on one device. A tape and a CUDA graph can record them.

    - `log`: if not None, each call adds its op's name.
    - `calls`: if not None, each call is added. Its tensors stay alive.

    Constants are tensors, because a tape would convert a Python number again at every replay.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.log: list[str] | None = None
        self.calls: list[OpCall] | None = None
        counting = torch.arange(COUNTING)
        self.zero = torch.zeros((), device=device)
        self.minus_infinity = torch.full((), -torch.inf, device=device)
        self.epsilon = torch.full((1, 1, 1), NORM_EPSILON, device=device)
        self.counting = counting.to(device)
        self.inverse_root = counting.double().pow(-0.5).float().to(device)
        self.place = counting.to(torch.int32).unsqueeze(1).to(device)

    def record(self, name: str) -> None:
        """Add `name` to the log, if one is kept."""
        if self.log is not None:
            self.log.append(name)

    @operation
    def scan_states(
        self,
        states: Tensor,
        sources: Tensor,
        follows: Tensor,
        longest: int,
        table: Tensor,
        input_ids: Tensor,
        decay: Tensor,
    ) -> Tensor:
        """Return the recurrent state after each token, [T, H].

        It is decay * (state before the token) + STATE_GAIN * table[input_ids], rounded once. The
        state before token t is:

        - the state of token t - 1 if follows[t], bool [T]
        - else row sources[t], int64 [T], of `states` [N, H]
        - else zero if that is -1

        At most `longest` tokens follow one another. `table` is [V, H], `decay` float32 [H].
        """
        added = _wide(table.index_select(0, input_ids)) * STATE_GAIN
        before = _wide(states.index_select(0, sources.clamp(min=0)))
        before = torch.where((sources >= 0)[:, None], before, self.zero)
        found = _as(added + decay * before, table)
        # Each turn completes one more token of each path.
        for _ in range(longest - 1):
            after = _as(added + decay * _wide(found.roll(1, 0)), table)
            found = torch.where(follows[:, None], after, found)
        return found

    @operation
    def store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        """Write `values` [T, W] into rows `rows` (int64 [T]) of `table` [N, W].

        If several values have the same row, the last one wins.
        """
        self._store_rows(table, rows, values)

    @operation
    def embed(self, table: Tensor, input_ids: Tensor, payload: Tensor) -> Tensor:
        """Return rows `input_ids` [T] of `table` [V, H] plus `payload` float32 [T, H]: [T, H]."""
        return _as(_wide(table.index_select(0, input_ids)) + payload, table)

    @operation
    def rotary(self, positions: Tensor, frequency: Tensor) -> Tensor:
        """Return cos and sin, float32 [2, T, D/2], of `positions` int64 [T].

        Rotary pair d turns by positions * frequency[d] (radians); `frequency` is float32 [D/2].
        """
        angle = positions.to(torch.float32)[:, None] * frequency
        return torch.stack([angle.cos(), angle.sin()])

    @operation
    def norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        """Return RMSNorm(hidden [T, H]; norm [H]) times weight [O, H] transposed: [T, O]."""
        return _as(self._product(hidden, weight, norm=norm), hidden)

    @operation
    def project_heads(
        self, hidden: Tensor, norm: Tensor, weight: Tensor, rotary: Tensor, turned: int
    ) -> tuple[Tensor, Tensor]:
        """Return RMSNorm(hidden) times weight [A D, H] transposed, as rotated and other heads.

        The first `turned` of the A heads, [T, turned, D], are rotated by `rotary` [2, T, D/2],
        first half against second. The others, [T, A - turned, D], are not.
        """
        rows, pairs = hidden.shape[0], rotary.shape[2]
        heads = self._product(hidden, weight, norm=norm).view(rows, -1, 2, pairs)
        halves, others = heads.split_with_sizes((turned, heads.shape[1] - turned), dim=1)
        cosine, sine = (rotary.view(2, rows, 1, 1, pairs) * halves).unbind()
        (first_cosine, second_cosine), (first_sine, second_sine) = cosine.unbind(2), sine.unbind(2)
        found = torch.cat([first_cosine - second_sine, second_cosine + first_sine], dim=-1)
        return _as(found, hidden), _as(others.flatten(2), hidden)

    @operation
    def linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        """Return residual [T, H] + inputs [T, I] times weight [H, I] transposed."""
        return _as(self._product(inputs, weight, residual=_wide(residual)), residual)

    @operation
    def gated_linear_add(
        self, gate_up: Tensor, weight: Tensor, residual: Tensor, row_limit: Tensor
    ) -> Tensor:
        """Return residual + (silu(gate) * up) times weight [H, I] transposed.

        `gate_up` is [T, 2 I], gate first. Rows at or beyond `row_limit` (int32 [1]) keep their
        residual, as experts skip padded rows.
        """
        gate, up = _wide(gate_up).chunk(2, -1)
        added = self._product(silu(gate) * up, weight, residual=_wide(residual))
        live = self.place[: residual.shape[0]] < row_limit
        return torch.where(live, _as(added, residual), residual)

    @operation
    def likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest softmax of every row of `logits` [T, V], and its first place.

        Both are [T, 1], float32 and int64. A NaN counts as the largest.
        """
        largest, place = torch.softmax(_wide(logits), dim=-1).max(-1, keepdim=True)
        return largest, place

    @operation
    def store_kv(
        self, cache: Tensor, loc: Tensor, loc_dtype: torch.dtype, key: Tensor, value: Tensor
    ) -> None:
        """Write key and value [T, G, D] into slots `loc` of `cache` [2, S, G, D].

        The ABI is fixed: the bytes of `loc` are read as `loc_dtype`, as a compiled kernel reads a
        raw pointer. Another dtype is reinterpreted, not converted. If several rows have the same
        slot, the last one wins.
        """
        slots = loc.view(loc_dtype)[: key.shape[0]]
        self._store_kv(cache, slots, key, value)

    @operation
    def attention(
        self,
        query: Tensor,
        cache: Tensor,
        begin: Tensor,
        end: Tensor,
        slots: Tensor,
        max_keys: int,
    ) -> Tensor:
        """Return softmax attention [T, Q, D] of every query row over its listed slots.

        Row t attends to slots[begin[t]:end[t]] (at most `max_keys`) of `cache` [2, S, G, D], in
        list order. Rows may share entries of the list. `begin` and `end` are [T], `slots` is [N],
        all int32 or int64. Every entry of `slots` must be a slot of the cache, even if no row lists
        it. A row without keys gives zeros.

        Other slots are never loaded. A row's bits depend only on its query and its keys in list
        order.
        """
        return self._attention(query, cache, ListedKeys(begin, end, slots, max_keys))

    def _store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        # One thread copies in order, so the last of several values for one row stays.
        table.index_copy_(0, rows, values)

    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None:
        # One thread copies in order, so the last of several values for one slot stays.
        cache.index_copy_(1, loc.long(), torch.stack([key, value]))

    def _product(
        self,
        inputs: Tensor,
        weight: Tensor,
        *,
        norm: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return inputs [T, I], normed if there is a `norm`, times weight [O, I] transposed.

        The result is float32 [T, O], with `residual` (float32) added if there is one.
        """
        rows = _wide(inputs).unsqueeze(1)
        if norm is not None:
            # The mean of squares plus epsilon, as the product of each row with itself.
            share = 1 / inputs.shape[1]
            mean = torch.baddbmm(self.epsilon, rows, rows.transpose(1, 2), alpha=share)
            rows = rows * torch.rsqrt(mean) * _wide(norm)
        factor = _wide(weight).T.expand(inputs.shape[0], -1, -1)
        if residual is None:
            return torch.bmm(rows, factor).squeeze(1)
        return torch.baddbmm(residual.unsqueeze(1), rows, factor).squeeze(1)

    def _attention(self, query: Tensor, cache: Tensor, keys: ListedKeys) -> Tensor:
        rows, heads, dim = query.shape
        kv_heads = cache.shape[2]
        turn = self.counting[: -(-keys.max_keys // LANES) * LANES]
        counts = (keys.end - keys.begin).unsqueeze(1)
        taken = turn < counts
        # A slot beyond the list is not loaded: the row loads its last key again.
        place = keys.begin.unsqueeze(1) + torch.minimum(turn, counts - 1)
        slot = keys.slots.take(place.clamp(0, keys.slots.shape[0] - 1))
        # The cache as rows of one head each. The heads of a slot are adjacent.
        entry = slot.unsqueeze(1) * kv_heads + self.counting[:kv_heads].unsqueeze(1)
        found = _wide(cache.view(2, -1, dim).index_select(1, entry.flatten()))
        key, value = found.view(2, rows * kv_heads, -1, dim).unbind()
        scaled = (_wide(query) * self.inverse_root[dim]).view(rows * kv_heads, -1, dim)
        score = torch.bmm(scaled, key.transpose(1, 2)).view(rows, heads, -1)
        score = torch.where(taken.unsqueeze(1), score, self.minus_infinity)
        weight = torch.softmax(score, dim=-1)
        mixed = torch.bmm(weight.view(rows * kv_heads, -1, weight.shape[2]), value)
        has_key = taken[:, :1].unsqueeze(2)
        return _as(torch.where(has_key, mixed.view(rows, heads, dim), self.zero), query)


def _wide(values: Tensor) -> Tensor:
    """Return values in float32. The check is cheaper than a conversion without effect."""
    return values if values.dtype is torch.float32 else values.float()


def _as(values: Tensor, like: Tensor) -> Tensor:
    """Return values in the dtype of `like`, rounded once."""
    return values if values.dtype is like.dtype else values.to(like.dtype)
