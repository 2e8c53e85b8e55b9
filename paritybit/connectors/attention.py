"""What an attention layer stores and returns, computed again from the slots of live rows.

A layer stores the keys and values of the tokens that a forward computes. Then it attends with their
queries to those in the slots of their requests. Quantised ones are read with the scales with which
they were stored. One layer of each forward is judged, for some tokens of each row.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import offsets
from paritybit.connectors.sampling import ROUNDING
from paritybit.watch.facts import Row, RowValues, Window, first_seen

ON_A_GPU = "attention on a GPU, whose kernels may round queries and weights to a few bits"
"""What is not judged."""

LOWEST = -1e30
"""A score that takes no weight from those of keys that are seen."""

TOKENS, KEYS = 4, 2**15
"""The most tokens of a row that are judged, and the most keys of a forward."""

STORED, RETURNED = ("stored keys", "stored values"), "attention"
"""What is judged. Values that are a part of keys are stored with them."""

LOSS = {
    torch.float8_e4m3fn: (2**-4, 2**-10),
    torch.float8_e5m2: (2**-3, 2**-17),
    torch.int8: (0.0, 1.0),
    torch.float16: (2**-11, 2**-25),
    torch.bfloat16: (2**-9, 0.0),
}
"""The largest loss by rounding to a dtype: a share of the number, and of the scale."""

SLACK = 1.05
"""How much more it may be, as the number is divided by the scale first."""

COARSE = 0.05
"""The largest difference between kernels that compute with fewer bits than float32."""

Held = Callable[[Tensor], Sequence[tuple[Tensor, Any]]]
"""Returns what slots hold, [n, G, width], with the scale of it: keys, and values if they differ."""


def on_a_gpu(model: Any) -> bool:
    """Return whether the parameters of a model are on a GPU."""
    parameters: Iterable[Tensor] = getattr(model, "parameters", tuple)()
    return any(one.device.type != "cpu" for one in islice(parameters, 1))


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    scale: float | None = None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend with queries to keys, of which they see `seen`, [T, L].

    Keys are [L, G, width] for all queries, or [T, L, G, width]. A sink takes weight without a
    value. No key gives zeros: the rest then has all weight.
    """
    of_keys = "lgd" if keys.dim() == 3 else "tlgd"
    scores = scores_of(q, keys, seen, scale, cap)
    rest = scores.new_tensor(LOWEST)
    if sinks is not None:
        rest = sinks.float().view(scores.shape[1], -1, 1)
    columns = torch.cat([scores, rest.expand(*scores.shape[:-1], 1)], -1)
    weights = columns.softmax(-1)[..., :-1]
    return torch.einsum(f"tghl,{of_keys}->tghd", weights, values).flatten(1, 2)


def scores_of(
    q: Tensor, keys: Tensor, seen: Tensor, scale: float | None = None, cap: float = 0.0
) -> Tensor:
    """Return the score of each key for each query, [T, G, heads / G, L]. See `attend`."""
    of_keys = "lgd" if keys.dim() == 3 else "tlgd"
    grouped = q.float().view(len(q), keys.shape[-2], -1, q.shape[-1])
    scores = torch.einsum(f"tghd,{of_keys}->tghl", grouped, keys)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap > 0:
        scores = cap * (scores / cap).tanh()
    return scores.masked_fill(~seen[:, None, None, :], -math.inf)


@dataclass(frozen=True, kw_only=True)
class Attending:
    """A call of an attention layer for the tokens that rows compute, before it runs.

    - `group`, `window`: those of the layer.
    - `queries`: [T, heads, width], in the order of the rows.
    - `given`: the keys and values that the layer gets, [T, G, width]; only keys if values are a
      part of them, and none if it stores nothing. The layer may change them.
    - `held`: what is in slots.
    - `own`: whether the queries see the keys and values that are given, and not those stored.
    - `width`: the width of values that are the first part of keys.
    - `made`: makes what the layer returns from what the queries get.
    - `how`: further arguments of `attend`.
    - `source`: where the layer's function begins.
    """

    name: str
    rows: Sequence[Row]
    group: str
    queries: Tensor
    given: Sequence[Tensor]
    held: Held
    window: Window | None = None
    own: bool = False
    width: int | None = None
    made: Callable[[Tensor], Tensor] = lambda found: found
    how: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None

    def noted(self) -> "Attending":
        """Return the call for the first rows, with copies of what the layer may change."""
        rows, left = list[Row](), KEYS
        for row in self.rows:
            left -= row.cached + row.computed
            if left < 0:
                break
            rows.append(row)
        size = sum(row.computed for row in rows)
        given = [one[:size].to(torch.float32, copy=True) for one in self.given]
        return replace(self, rows=rows, given=given)

    def judged(self, output: Tensor, whole: bool = True) -> Iterator[RowValues]:
        """Yield what the layer stored for some tokens, and what it returned for them, [T, ...].

        That is judged only if it is the `whole` attention of the tokens.
        """
        stored, returned = [Judged(name) for name in STORED], Judged(RETURNED)
        for row, start in zip(self.rows, offsets(row.computed for row in self.rows), strict=False):
            first = first_seen(self.window, row.cached)
            slots = row.slots[self.group][first : row.cached + row.computed].long()
            if row.spare or not row.computed or bool((slots < 0).any()):
                continue  # Other checks judge whether a position has a slot.
            slots = slots.to(output.device)
            at = torch.linspace(0, row.computed - 1, min(row.computed, TOKENS)).long()
            prefix, mine = row.cached - first, slice(start, start + row.computed)
            new = [one[mine] for one in self.given]
            kept = self.held(slots)
            parts = [part.float() * scale for part, scale in kept]
            for one, part, given, (held, scale) in zip(stored, parts, new, kept, strict=False):
                found = part[prefix + at]
                factor = scale[prefix + at] if isinstance(scale, Tensor) and scale.dim() else scale
                one.add(row, at, found, storable(given[at], found, held.dtype, factor))
            if not whole:
                continue
            if self.own:
                pairs = zip(parts, new, strict=True)
                parts = [torch.cat((one[:prefix], other)) for one, other in pairs]
            keys, *values = parts
            values = values or [keys[..., : self.width]]
            found, q = output[mine][at].float().flatten(1), self.queries[mine][at]
            places, queries = first + torch.arange(len(keys)), (row.cached + at).tolist()
            seen, fewer = (self.seen(queries, places, slack).to(slots.device) for slack in (0, 1))
            right = self.of_queries(q, keys, values[0], seen)
            if not torch.equal(seen, fewer):  # Some kernels leave out the oldest key of a window.
                other = self.of_queries(q, keys, values[0], fewer)
                nearer = (found - other).abs().amax(1) < (found - right).abs().amax(1)
                right = other.where(nearer[:, None], right)
            returned.add(row, at, found, right)
        within = ROUNDING if output.dtype == torch.float32 else COARSE
        for one in (*stored, returned):
            yield from one.values(self, within)

    def seen(self, queries: Sequence[int], keys: Tensor, slack: int = 0) -> Tensor:
        """Return which of the keys at some positions queries at others see, bool [T, L]."""
        firsts = torch.tensor([first_seen(self.window, one, slack) for one in queries])
        return (keys >= firsts[:, None]) & (keys <= torch.tensor(queries)[:, None])

    def of_queries(self, q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Return what queries get from the keys that they see."""
        return self.made(attend(q, keys, values, seen, **self.how)).flatten(1)


@dataclass
class Judged:
    """What is judged of some tokens: what is there, and what is right."""

    name: str
    requests: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    held: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)

    def add(self, row: Row, at: Tensor, held: Tensor, right: Tensor) -> None:
        """Add some of the tokens that a row computes."""
        self.requests += [row.request] * len(at)
        self.positions += (row.cached + at).tolist()
        self.held.append(held.flatten(1))
        self.right.append(right.flatten(1))

    def values(self, call: Attending, within: float) -> Iterator[RowValues]:
        """Yield them as values of rows."""
        if self.requests:
            known = torch.cat(self.held), torch.cat(self.right)
            yield RowValues(
                *(self.name, self.requests, *known, within, call.source),
                explain=lambda at: f"it is of position {self.positions[at]} in {call.name}",
            )


def storable(given: Tensor, found: Tensor, dtype: torch.dtype, scale: Any) -> Tensor:
    """Return what is right in slots: what is `found` there, where rounding explains it."""
    share, step = LOSS.get(dtype, (0.0, 0.0))
    if dtype.itemsize == 1:
        known = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        given = (given / scale).clamp(known.min, known.max) * scale
    near = (found - given).abs() <= SLACK * (share * given.abs() + step * scale)
    return found.where(near, given)


class Layers:
    """Chooses a layer of each forward, and keeps what it judges until the forward ends."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.chosen: str | None = None
        self.forward = -1
        self.values = list[RowValues]()

    def due(self, name: str, forward: int) -> bool:
        """Return whether to judge a call of a layer in the forward with this number."""
        self.names.setdefault(name)
        if forward != self.forward:
            self.forward, self.values = forward, []
            names = [*self.names]
            self.chosen = names[forward % len(names)]
        return name == self.chosen

    def taken(self) -> list[RowValues]:
        """Return what was judged, once."""
        found, self.values = self.values, []
        return found
