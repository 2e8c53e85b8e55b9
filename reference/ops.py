"""The ops: all arithmetic of the model.

The eager and the graph run call the same ops, so their bits can be compared. Every op is
batch-invariant: the bits of a row depend only on that row's inputs, not on the number of rows or
the row's place. A product is a batch of products, one per row, each of the same shape whatever the
batch; `F.linear` is not used, because its bits change with the batch size. On CUDA,
`reference/cuda_ops.py` replaces the ops whose bits, or order of writes, depend on the batch there.

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
from torch.nn.functional import gelu, pad, silu

STATE_GAIN = 0.5
"""The share of a token's embedding that is added to the recurrent state."""

NORM_EPSILON = 1e-6
COUNTING = 4096
GELU_SCALE = 1.5957691216057308  # 2 * sqrt(2 / pi): tanh form as a logistic
GELU_CUBE = 0.044715
LANES = 16
"""Float32 elements in the longest vectors of a CPU. A softmax over whole ones is twice as fast."""
VECTOR = 64
"""A multiple of the float32 vectors of any CPU, as torch unrolls them."""

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
    mask: Tensor | None
    mask_start: Tensor | None
    max_keys: int


def operation(
    method: Callable[Concatenate["Ops", Arguments], Result],
) -> Callable[Concatenate["Ops", Arguments], Result]:
    """Add the op's name to `Ops.log`, and its call to `Ops.calls`, if they are kept."""
    name = method.__name__

    @wraps(method)
    def logged(self: "Ops", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if self.log is not None:
            self.log.append(name)
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


class Ops:
    """The ops of the decoder, in torch, on one device. A tape and a CUDA graph can record them.

    - `log`: if not None, each call adds its op's name.
    - `calls`: if not None, each call is added. Its tensors stay alive.

    Constants are tensors, created once. Torch takes longer to convert a Python number than to
    multiply a small tensor, and a tape would convert it again at every replay.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.log: list[str] | None = None
        self.calls: list[OpCall] | None = None
        counting = torch.arange(COUNTING)
        self.zero, self.one = torch.zeros((), device=device), torch.ones((), device=device)
        self.minus_infinity = torch.full((), -torch.inf, device=device)
        self.epsilon = torch.full((1, 1, 1), NORM_EPSILON, device=device)
        self.gelu_scale = torch.tensor(-GELU_SCALE, device=device)
        self.gelu_cube = torch.tensor(-GELU_SCALE * GELU_CUBE, device=device)
        self.counting = counting.to(device)
        self.inverse_root = counting.double().pow(-0.5).float().to(device)
        self.place = counting.to(torch.int32).unsqueeze(1).to(device)

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
        (int64 [T]) of `encoder_table`, which models cross attention.
        """
        state = torch.where(state_mask[:, None], _wide(states), self.zero)
        return state + _wide(encoder_table.index_select(0, encoder_lens))

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
        - zero if both are -1

        No path of parents is longer than `longest` tokens. The index tensors are int64 [T], `table`
        is [V, H], `decay` float32 [H].
        """
        added = _wide(table.index_select(0, input_ids)) * STATE_GAIN
        before = _wide(states.index_select(0, sources.clamp(min=0)))
        before = torch.where((sources >= 0)[:, None], before, self.zero)
        found = _as(added + decay * before, table)
        if longest == 1:
            return found
        follows, place = (parents >= 0)[:, None], parents.clamp(min=0)
        # Each turn completes one more token of each path.
        for _ in range(longest - 1):
            after = _as(added + decay * _wide(found.index_select(0, place)), table)
            found = torch.where(follows, after, found)
        return found

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
        return _as(_wide(table.index_select(0, input_ids)) + payload, table)

    @operation
    def rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        """Return cos and sin, float32 [2, T, D/2], of `positions` int64 [P, T].

        Rotary pair d turns by positions[section[d]] * frequency[d] (radians);
        `section` is int64 [D/2], `frequency` float32 [D/2].
        """
        angle = positions.index_select(0, section).to(torch.float32).T * frequency
        return torch.stack([angle.cos(), angle.sin()])

    @operation
    def norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        """Return RMSNorm(hidden [T, H]; norm [H]) times weight [O, H] transposed: [T, O]."""
        return _as(self._projected(hidden, norm, weight).squeeze(1), hidden)

    @operation
    def project_heads(
        self, hidden: Tensor, norm: Tensor, weight: Tensor, rotary: Tensor, turned: int
    ) -> tuple[Tensor, Tensor]:
        """Return RMSNorm(hidden) times weight [A D, H] transposed, as rotated and other heads.

        The first `turned` of the A heads, [T, turned, D], are rotated by `rotary` [2, T, D/2],
        first half against second. The others, [T, A - turned, D], are not.
        """
        rows, pairs = hidden.shape[0], rotary.shape[2]
        heads = self._projected(hidden, norm, weight).view(rows, -1, 2, pairs)
        halves, others = heads.split_with_sizes((turned, heads.shape[1] - turned), dim=1)
        cosine, sine = (rotary.view(2, rows, 1, 1, pairs) * halves).unbind()
        (first_cosine, second_cosine), (first_sine, second_sine) = cosine.unbind(2), sine.unbind(2)
        found = torch.cat([first_cosine - second_sine, second_cosine + first_sine], dim=-1)
        return _as(found, hidden), _as(others.flatten(2), hidden)

    @operation
    def linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        """Return residual [T, H] + inputs [T, I] times weight [H, I] transposed."""
        return _as(self._added(_wide(residual), _wide(inputs).unsqueeze(1), weight), residual)

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
        gate, up = _wide(gate_up).view(gate_up.shape[0], 2, 1, -1).unbind(1)
        added = self._added(_wide(residual), self._activated(gate, activation) * up, weight)
        live = self.place[: residual.shape[0]] < row_limit
        return torch.where(live, _as(added, residual), residual)

    @operation
    def limit_rows(self, rows: Tensor, row_limit: Tensor) -> Tensor:
        """Return `rows` [T, O] with zeros in the rows at or beyond `row_limit` (int32 [1])."""
        index = torch.arange(rows.shape[0], device=rows.device)
        return rows.masked_fill(index[:, None] >= row_limit, 0.0)

    @operation
    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax of every row of `logits` [T, V], float32 [T, V]."""
        return torch.softmax(_wide(logits), dim=-1)

    @operation
    def largest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` largest of every row of `values` float32 [T, N], and their places.

        Both are [T, count], in descending order. Places are int64. Equal values are ordered by
        place, lowest first. A NaN counts as -inf, and is returned as -inf. Places are in 0 .. N-1
        and distinct whatever the values; if `count` exceeds N, the last place repeats. `count` is
        positive.
        """
        ranked = values.masked_fill(values.isnan(), -torch.inf)
        index = torch.arange(values.shape[1], device=values.device)
        gone = torch.zeros_like(ranked, dtype=torch.bool)
        found = []
        for _ in range(count):
            best = ranked.masked_fill(gone, -torch.inf).amax(-1, keepdim=True)
            trailing = (ranked != best).logical_or(gone)
            place = index.expand_as(ranked).masked_fill(trailing, values.shape[1] - 1)
            place = place.amin(-1, keepdim=True)
            gone = gone.logical_or(index == place)
            found.append(place)
        places = torch.cat(found, dim=-1)
        return ranked.gather(-1, places), places

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

        Raises ValueError unless the lists and the mask are contiguous.
        """
        require_contiguous(begin, end, slots)
        if mask is not None and mask_start is not None:
            require_contiguous(mask, mask_start)
        keys = ListedKeys(begin, end, slots, mask, mask_start, max_keys)
        return self._attention(query, cache, keys, sinks)

    def _store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        # One thread copies in order, so the last of several values for one row stays.
        table.index_copy_(0, rows, values)

    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None:
        # One thread copies in order, so the last of several values for one slot stays.
        cache.index_copy_(1, loc.long(), torch.stack([key, value]))

    def _projected(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        """Return RMSNorm(hidden) times a weight [O, I] transposed, float32 [T, 1, O]."""
        rows, weight = _whole(_wide(hidden)).unsqueeze(1), _whole(weight)
        # The mean of squares plus epsilon, as the product of each row with itself.
        mean = torch.baddbmm(self.epsilon, rows, rows.transpose(1, 2), alpha=1 / hidden.shape[1])
        normed = rows * torch.rsqrt(mean) * _whole(_wide(norm))
        return torch.bmm(normed, _factor(weight, normed))

    def _added(self, residual: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return residual [T, O] + inputs [T, 1, I] times weight [O, I] transposed, all float32."""
        inputs, weight = _whole(inputs), _whole(weight)
        factor = _factor(weight, inputs)
        return torch.baddbmm(residual.unsqueeze(1), inputs, factor).squeeze(1)

    def _activated(self, gate: Tensor, activation: str) -> Tensor:
        """Return the activation of `gate` [..., F]: fused on a CPU if VECTOR divides F."""
        if gate.shape[-1] % VECTOR == 0 and not gate.is_cuda:
            return gelu(gate, approximate="tanh") if activation == "gelu" else silu(gate)
        exponent = -gate
        if activation == "gelu":
            exponent = gate * (self.gelu_scale + self.gelu_cube * (gate * gate))
        return gate / (torch.exp(exponent) + self.one)

    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None
    ) -> Tensor:
        rows, heads, dim = query.shape
        kv_heads, max_keys = cache.shape[2], keys.max_keys
        width = max_keys if sinks is None else max_keys + 1
        width = -(-width // LANES) * LANES
        entry, bias, has_key = self._read_entries(keys, width, kv_heads)
        found = _wide(cache.view(2, -1, dim).index_select(1, entry))
        key, value = found.view(2, rows * kv_heads, width, dim).unbind()
        scaled = (_wide(query) * self.inverse_root[dim]).view(rows * kv_heads, -1, dim)
        score = torch.baddbmm(bias, scaled, key.transpose(1, 2))
        if sinks is not None:
            score.view(rows, heads, width).select(2, max_keys).copy_(sinks)
        weight = torch.softmax(score, dim=-1)
        if sinks is not None:  # A sink has weight but no value.
            weight, value = weight[..., :max_keys], value[:, :max_keys]
        mixed = torch.bmm(weight, value).view(rows, heads, dim)
        return _as(torch.where(has_key, mixed, self.zero), query)

    def _read_entries(
        self, keys: ListedKeys, width: int, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what attention derives from its lists.

        - The entries to read, int64 [T * G * width], of a cache whose entries are the heads of its
          slots.
        - A bias for the scores, float32 [T * G, 1, width]: 0 if a key takes part, else minus
          infinity.
        - Whether any key takes part, bool [T, 1, 1].
        """
        begin, end, slots, mask, mask_start, max_keys = keys
        turn = self.counting[:width]
        place = begin.unsqueeze(1) + turn
        taken = place < end.unsqueeze(1)
        if width > max_keys:
            taken = taken.logical_and(turn < max_keys)
        last = slots.shape[0] - 1
        if mask is None or mask_start is None:
            # A place beyond the list reads the row's first slot again, and takes no part.
            place = torch.where(taken, place, begin.clamp(max=last).unsqueeze(1))
            # The first place is listed unless the row has no key.
            has_key = taken[:, :1]
        else:
            bit = (mask_start.unsqueeze(1) + turn).clamp(0, mask.shape[0] - 1)
            taken = taken.logical_and(mask.take(bit))
            # A masked place reads the row's last unmasked place again.
            other = (taken * turn).amax(-1, keepdim=True)
            place = (begin.unsqueeze(1) + torch.where(taken, turn, other)).clamp(0, last)
            has_key = taken.any(-1, keepdim=True)
        slot = slots.index_select(0, place.flatten()).view(-1, 1, width)
        # The cache as rows of one head each. The heads of a slot are adjacent.
        group = self.counting[:kv_heads].unsqueeze(1)
        entry = torch.add(group, slot, alpha=kv_heads).flatten()
        by_head = taken.unsqueeze(1).expand(-1, kv_heads, -1)
        bias = torch.where(by_head, self.zero, self.minus_infinity).view(-1, 1, width)
        return entry, bias, has_key.unsqueeze(2)


def _wide(values: Tensor) -> Tensor:
    """Return values in float32. The check is cheaper than a conversion without effect."""
    return values if values.dtype is torch.float32 else values.float()


def _as(values: Tensor, like: Tensor) -> Tensor:
    """Return values in the dtype of `like`, rounded once."""
    return values if values.dtype is like.dtype else values.to(like.dtype)


def _whole(values: Tensor) -> Tensor:
    """Return values [..., I] with each row padded with zeros to a multiple of LANES.

    All rows are then aligned alike to a CPU's vectors, on which the bits of a product may depend.
    """
    beyond = -values.shape[-1] % LANES
    return pad(values, (0, beyond)) if beyond else values


def _factor(weight: Tensor, inputs: Tensor) -> Tensor:
    """Return weight [O, I] as the factor of each row of `inputs` [T, ...]: [T, I, O]."""
    wide = _wide(weight)
    (outputs, width), (along, across) = wide.shape, wide.stride()
    # Transposed and expanded in one call.
    return wide.as_strided((inputs.shape[0], width, outputs), (0, across, along))
