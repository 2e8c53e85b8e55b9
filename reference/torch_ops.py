"""The ops in plain torch, for a CPU.

Rows are independent by construction: a product is a batch of products, one per row, each of the
same shape whatever the batch. `F.linear` is not used, because its bits change with the batch size.
The bits of products and fused activations change with an element's position unless rows fill whole
vectors.
"""

import torch
from paritybit.reference.ops import STATE_GAIN, ListedKeys, Ops, Paths, Reused
from torch import Tensor
from torch.nn.functional import gelu, pad, silu

NORM_EPSILON = 1e-6
COUNTING = 4096
GELU_SCALE = 1.5957691216057308  # 2 * sqrt(2 / pi): tanh form as a logistic
GELU_CUBE = 0.044715
LANES = 16
"""Number of float32 elements in the longest vectors of a CPU.

A softmax over whole vectors takes half as long.
"""
VECTOR = 64
"""A multiple of the float32 vectors of any CPU, as torch unrolls them."""


class TorchOps(Ops):
    """Ops made only of aten calls, so that a tape can record them.

    Constants are tensors, created once. Torch takes longer to convert a Python number than to
    multiply a small tensor, and a tape would convert it again at every replay.
    """

    def __init__(self) -> None:
        super().__init__()
        self.zero, self.one = torch.zeros(()), torch.ones(())
        self.minus_infinity = torch.full((), -torch.inf)
        self.epsilon = torch.full((1, 1, 1), NORM_EPSILON)
        self.gelu_scale = torch.tensor(-GELU_SCALE)
        self.gelu_cube = torch.tensor(-GELU_SCALE * GELU_CUBE)
        self.counting = torch.arange(COUNTING)
        self.inverse_root = self.counting.double().pow(-0.5).float()
        self.within = torch.arange(2 * COUNTING) < COUNTING
        self.place = torch.arange(COUNTING, dtype=torch.int32).unsqueeze(1)

    def _payload(
        self, states: Tensor, state_mask: Tensor, encoder_table: Tensor, encoder_lens: Tensor
    ) -> Tensor:
        state = torch.where(state_mask[:, None], _wide(states), self.zero)
        return state + _wide(encoder_table.index_select(0, encoder_lens))

    def _scan_states(
        self, states: Tensor, paths: Paths, table: Tensor, input_ids: Tensor, decay: Tensor
    ) -> Tensor:
        sources, parents, longest = paths
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

    def _store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        # One thread copies in order, so the last of several values for one row stays.
        table.index_copy_(0, rows, values)

    def _embed(self, table: Tensor, input_ids: Tensor, payload: Tensor) -> Tensor:
        return _as(_wide(table.index_select(0, input_ids)) + payload, table)

    def _rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        angle = positions.index_select(0, section).to(torch.float32).T * frequency
        return torch.stack([angle.cos(), angle.sin()])

    def _norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        return _as(self._projected(hidden, norm, weight).squeeze(1), hidden)

    def _project_heads(
        self, hidden: Tensor, norm: Tensor, weight: Tensor, rotary: Tensor, turned: int
    ) -> tuple[Tensor, Tensor]:
        rows, pairs = hidden.shape[0], rotary.shape[2]
        heads = self._projected(hidden, norm, weight).view(rows, -1, 2, pairs)
        halves, others = heads.split_with_sizes((turned, heads.shape[1] - turned), dim=1)
        cosine, sine = (rotary.view(2, rows, 1, 1, pairs) * halves).unbind()
        (first_cosine, second_cosine), (first_sine, second_sine) = cosine.unbind(2), sine.unbind(2)
        found = torch.cat([first_cosine - second_sine, second_cosine + first_sine], dim=-1)
        return _as(found, hidden), _as(others.flatten(2), hidden)

    def _projected(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        """Return RMSNorm(hidden) times a weight [O, I] transposed, float32 [T, 1, O]."""
        rows, weight = _whole(_wide(hidden)).unsqueeze(1), _whole(weight)
        # The mean of squares plus epsilon, as the product of each row with itself.
        mean = torch.baddbmm(self.epsilon, rows, rows.transpose(1, 2), alpha=1 / hidden.shape[1])
        normed = rows * torch.rsqrt(mean) * _whole(_wide(norm))
        return torch.bmm(normed, _factor(weight, normed))

    def _linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        return _as(_added(_wide(residual), _wide(inputs).unsqueeze(1), weight), residual)

    def _gated_linear_add(
        self,
        gate_up: Tensor,
        weight: Tensor,
        residual: Tensor,
        activation: str,
        row_limit: Tensor,
    ) -> Tensor:
        gate, up = _wide(gate_up).view(gate_up.shape[0], 2, 1, -1).unbind(1)
        added = _added(_wide(residual), self._activated(gate, activation) * up, weight)
        live = self.place[: residual.shape[0]] < row_limit
        return torch.where(live, _as(added, residual), residual)

    def _activated(self, gate: Tensor, activation: str) -> Tensor:
        """Return the activation of `gate` [..., F], composed of exp unless VECTOR divides F."""
        if gate.shape[-1] % VECTOR == 0:
            return gelu(gate, approximate="tanh") if activation == "gelu" else silu(gate)
        exponent = -gate
        if activation == "gelu":
            exponent = gate * (self.gelu_scale + self.gelu_cube * (gate * gate))
        return gate / (torch.exp(exponent) + self.one)

    def _limit_rows(self, rows: Tensor, row_limit: Tensor) -> Tensor:
        index = torch.arange(rows.shape[0], device=rows.device)
        return rows.masked_fill(index[:, None] >= row_limit, 0.0)

    def _probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(_wide(logits), dim=-1)

    def _largest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
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

    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None:
        # One thread copies in order, so the last of several values for one slot stays.
        cache.index_copy_(1, loc.long(), torch.stack([key, value]))

    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None, reused: Reused
    ) -> Tensor:
        rows, heads, dim = query.shape
        kv_heads, max_keys = cache.shape[2], keys.max_keys
        width = max_keys if sinks is None else max_keys + 1
        width = -(-width // LANES) * LANES
        entry, bias, has_key = reused.of((*keys, width, kv_heads), self._read_entries)
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
        self,
        begin: Tensor,
        end: Tensor,
        slots: Tensor,
        mask: Tensor | None,
        mask_start: Tensor | None,
        max_keys: int,
        width: int,
        kv_heads: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what attention derives from its lists. All layers of a kind share it.

        - The entries to read, int64 [T * G * width], of a cache whose entries are the heads of its
          slots.
        - A bias for the scores, float32 [T * G, 1, width]: 0 if a key takes part, else minus
          infinity.
        - Whether any key takes part, bool [T, 1, 1].
        """
        turn = self.counting[:width]
        place = begin.unsqueeze(1) + turn
        taken = place < end.unsqueeze(1)
        if width > max_keys:
            taken = taken.logical_and(
                self.within[COUNTING - max_keys : COUNTING - max_keys + width]
            )
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


def _added(residual: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """Return residual [T, O] + inputs [T, 1, I] times weight [O, I] transposed, all float32."""
    inputs, weight = _whole(inputs), _whole(weight)
    factor = _factor(weight, inputs)
    return torch.baddbmm(residual.unsqueeze(1), inputs, factor).squeeze(1)
