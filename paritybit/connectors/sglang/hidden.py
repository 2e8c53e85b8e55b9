"""The hidden states that a draft model gets, compared with those that a model returned.

A draft model computes the tokens of its target's last forward with the hidden states that the
target returned for them. Its steps begin with the hidden state that the draft model itself then
returned for the last token of each request. A tree of draft tokens is not judged.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.sglang.models import Model
from paritybit.connectors.sglang.rows import EXTENDS, Rows, mode_of
from paritybit.watch.facts import Row, StaticInput

LARGEST = 2**26
"""The most bytes of hidden states of one forward that are copied."""

MOST = 4096
"""The number of requests whose last hidden states are kept."""


class Returned(OrderedDict[str, tuple[int, Tensor]]):
    """The hidden states that a model returned last, by request.

    Each has the position of the first one, and the states, [positions, width].
    """

    def note(self, rows: Sequence[Row], states: Any, lasts: Sequence[int]) -> None:
        """Keep a copy of the states that a forward returned: one per computed token, or per row.

        The state of a row is that of its computed token number `lasts`, counted from 1.
        """
        for row in rows:
            self.pop(row.request, None)
        if not isinstance(states, Tensor) or states.ndim != 2 or states.nbytes > LARGEST:
            return
        counts = [row.computed for row in rows]
        if len(states) == sum(counts):
            lasts = counts
        elif len(states) == len(lasts):
            counts = [1] * len(rows)
        else:
            return
        for row, last, mine in zip(rows, lasts, states.split(counts), strict=True):
            self[row.request] = row.cached + last - len(mine), mine.clone()
        while len(self) > MOST:
            self.popitem(last=False)


class HiddenStates:
    """Follows the hidden states of a target and of its draft model."""

    def __init__(self) -> None:
        self.target, self.draft = Returned(), Returned()

    def clear(self) -> None:
        """Forget all states, because a forward was not watched."""
        self.target.clear()
        self.draft.clear()

    def note(self, model: Model, found: Rows, batch: Any, result: Any) -> None:
        """Keep the hidden states that a forward returned."""
        mode = mode_of(batch)
        if model.drafts and mode == "decode":
            return  # They belong to drafts.
        mine = self.draft if model.drafts else self.target
        # The engine moves the accepted branch of a tree to the front.
        tree = not found.one_each or (getattr(batch.spec_info, "topk", None) or 1) > 1
        if tree or mine is self.target:  # The next draft forward alone uses the target's states.
            mine.clear()
        if tree:
            return
        lasts = [row.computed for row in found.rows]
        if mode in EXTENDS:
            accepted = getattr(batch.spec_info, "num_accept_tokens", None)
            # A graph runner pads it.
            lasts = [] if accepted is None else accepted[: len(lasts)].tolist()
        first = result[0] if isinstance(result, tuple) and result else result
        output = getattr(first, "logits_output", first)
        mine.note(found.rows, getattr(output, "hidden_states", None), lasts)

    def given(self, model: Model, found: Rows, batch: Any) -> list[StaticInput]:
        """Return the hidden states that a draft model gets, with those that are known."""
        held = getattr(getattr(batch, "spec_info", None), "hidden_states", None)
        if not (model.drafts and model.ahead and found.one_each and isinstance(held, Tensor)):
            return []
        steps = mode_of(batch) == "decode"
        counts = [1 if steps else row.computed for row in found.rows]
        if held.ndim != 2 or len(held) != sum(counts):
            return []
        pairs, source = [], self.draft if steps else self.target
        for row, count, mine in zip(found.rows, counts, held.split(counts), strict=True):
            begin, states = source.get(row.request, (0, mine[:0]))
            first = row.cached - steps - begin
            right = states[first:][:count] if first >= 0 else states[:0]
            if right.shape == mine.shape:
                pairs.append((mine, right))
        if not pairs:
            return []
        given, known = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return [expected("hidden_states", given, known, held)]
