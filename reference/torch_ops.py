"""The ops in plain torch, for a CPU.

Rows are kept independent by construction: products are summed along the last
axis of a tensor that has the row as an outer axis, and activations are composed
of exp alone. `F.linear` and the fused activations change bits with the batch
size or with an element's position, so they are not used.
"""

import torch
from torch import Tensor

from reference.ops import STATE_GAIN, Ops

NORM_EPSILON = 1e-6
GELU_CUBE = 0.044715
COUNTING = 4096
GELU_SCALE = 1.5957691216057308  # 2 * sqrt(2 / pi): tanh form as a logistic


class TorchOps(Ops):
    """Ops of aten calls only, so that a tape can record them.

    Constants are made once: a tape would otherwise fill them again at every replay.
    """

    def __init__(self) -> None:
        super().__init__()
        self.zero = torch.zeros(())
        self.minus_infinity = torch.full((), -torch.inf)
        self.counting = torch.arange(COUNTING)

    def _payload(
        self, states: Tensor, state_mask: Tensor, encoder_table: Tensor, encoder_lens: Tensor
    ) -> Tensor:
        state = torch.where(state_mask[:, None], states.float(), self.zero)
        return state + encoder_table[encoder_lens].float()

    def _scan_states(
        self,
        states: Tensor,
        sources: Tensor,
        parents: Tensor,
        longest: int,
        table: Tensor,
        input_ids: Tensor,
        decay: Tensor,
    ) -> Tensor:
        added = table[input_ids].float() * STATE_GAIN
        before = states[sources.clamp(min=0)].float()
        before = torch.where((sources >= 0)[:, None], before, self.zero)
        found = (added + decay * before).to(table.dtype)
        follows, place = (parents >= 0)[:, None], parents.clamp(min=0)
        # Each turn makes one more token of each path right, and changes none that is.
        for _ in range(longest - 1):
            after = (added + decay * found[place].float()).to(table.dtype)
            found = torch.where(follows, after, found)
        return found

    def _store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        winner = ((rows[:, None] == rows) * self.counting[: rows.shape[0]]).amax(-1)
        table.index_put_((rows,), values[winner])

    def _embed(self, table: Tensor, input_ids: Tensor, payload: Tensor) -> Tensor:
        return (table[input_ids].float() + payload).to(table.dtype)

    def _rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        angle = positions[section].to(torch.float32).T * frequency
        return torch.stack([angle.cos(), angle.sin()])

    def _rope(self, heads: Tensor, rotary: Tensor) -> Tensor:
        cosine, sine = rotary[:, :, None]
        first, second = heads.float().chunk(2, dim=-1)
        rotated = [first * cosine - second * sine, second * cosine + first * sine]
        return torch.cat(rotated, dim=-1).to(heads.dtype)

    def _norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        rows = hidden.float()
        scale = torch.rsqrt((rows * rows).mean(-1, keepdim=True) + NORM_EPSILON)
        return _linear(rows * scale * norm.float(), weight).to(hidden.dtype)

    def _linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        return (residual.float() + _linear(inputs.float(), weight)).to(residual.dtype)

    def _gated_linear_add(
        self,
        gate_up: Tensor,
        weight: Tensor,
        residual: Tensor,
        activation: str,
        row_limit: Tensor,
    ) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        added = residual.float() + _linear(_activate(gate, activation) * up, weight)
        live = self.counting[: residual.shape[0], None] < row_limit
        return torch.where(live, added.to(residual.dtype), residual)

    def _probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.float(), dim=-1)

    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None:
        # Every row writes the values of the highest row with its slot: order does not matter.
        winner = ((loc[:, None] == loc) * self.counting[: loc.shape[0]]).amax(-1)
        cache[0].index_put_((loc,), key[winner])
        cache[1].index_put_((loc,), value[winner])

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
    ) -> Tensor:
        rows, heads, dim = query.shape
        kv_heads = cache.shape[2]
        turn = self.counting[:max_keys]
        place, last = begin[:, None] + turn, end[:, None] - 1
        listed = place <= last
        if mask is None or mask_start is None:
            taken = listed[:, None, None]
            # A place beyond the list re-reads the row's last listed slot, and is not selected.
            slot = slots[torch.minimum(place, last).clamp(min=0)]
            # A row's first place is listed unless it has no key at all.
            has_key = taken[..., :1]
        else:
            bit = (mask_start[:, None] + turn).clamp(0, mask.shape[0] - 1)
            listed = listed & mask[bit]
            taken = listed[:, None, None]
            # Likewise, a masked place re-reads the row's last place that is not masked.
            other = (listed * turn).amax(-1, keepdim=True)
            place = begin[:, None] + torch.where(listed, turn, other)
            slot = slots[place.clamp(0, slots.shape[0] - 1)]
            has_key = taken.any(-1, keepdim=True)
        keys, values = cache[:, slot].float().transpose(2, 3)[:, :, :, None]  # [T, G, 1, keys, D]
        grouped = query.float().view(rows, kv_heads, heads // kv_heads, 1, dim)
        score = (grouped * keys).sum(-1) * dim**-0.5  # [T, G, Q/G, keys]
        score = torch.where(taken, score, self.minus_infinity)
        if sinks is not None:
            sink = sinks.view(1, kv_heads, heads // kv_heads, 1).expand(rows, -1, -1, -1)
            score = torch.cat([score, sink], dim=-1)
        weight = torch.softmax(score, dim=-1)[..., :max_keys, None]
        mixed = (weight * values).sum(-2)
        mixed = torch.where(has_key, mixed, self.zero)
        return mixed.view(rows, heads, dim).to(query.dtype)


def _linear(inputs: Tensor, weight: Tensor) -> Tensor:
    return (inputs[:, None, :] * weight.float()).sum(-1)


def _activate(gate: Tensor, activation: str) -> Tensor:
    if activation == "gelu":
        return gate / (1.0 + torch.exp(-GELU_SCALE * (gate + GELU_CUBE * gate * gate * gate)))
    return gate / (1.0 + torch.exp(-gate))
