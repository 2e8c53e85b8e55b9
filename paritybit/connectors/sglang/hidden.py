"""The hidden states that a draft model gets, compared with those that a model returned.

A draft model computes the tokens of its target's last forward with the hidden states that the
target returned for them. Its steps begin with the hidden state that the draft model itself then
returned for the last token of each request. A tree of draft tokens is not judged.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.sglang.models import Model
from paritybit.connectors.sglang.rows import EXTENDS, Rows, mode_of
from paritybit.watch.facts import StaticInput

LARGEST = 2**26
"""The most bytes of hidden states of one forward that are copied."""

MOST = 4096
"""The number of requests whose last hidden states are kept."""


class HiddenStates:
    """Follows the hidden states of a target and of its draft model.

    Each maps a request to the position of the first state that a model returned last, and to these
    states, [positions, width].
    """

    def __init__(self) -> None:
        self.target = OrderedDict[str, tuple[int, Tensor]]()
        self.draft = OrderedDict[str, tuple[int, Tensor]]()

    def clear(self) -> None:
        """Forget all states, because a forward was not watched."""
        self.target.clear()
        self.draft.clear()

    def note(self, model: Model, found: Rows, batch: Any, result: Any) -> None:
        """Keep a copy of the states that a forward returned: one per computed token, or per row."""
        mode = mode_of(batch)
        if model.drafts and mode == "decode":
            return  # They belong to drafts.
        mine = self.draft if model.drafts else self.target
        # The engine moves the accepted branch of a tree to the front.
        tree = not found.one_each or (getattr(batch.spec_info, "topk", None) or 1) > 1
        if tree or mine is self.target:  # The next draft forward alone uses the target's states.
            mine.clear()
        for row in found.rows:
            mine.pop(row.request, None)
        first = result[0] if isinstance(result, tuple) and result else result
        states = getattr(getattr(first, "logits_output", first), "hidden_states", None)
        if tree or not isinstance(states, Tensor) or states.ndim != 2 or states.nbytes > LARGEST:
            return
        counts = lasts = [row.computed for row in found.rows]
        if mode in EXTENDS and len(states) != sum(counts):
            accepted = getattr(batch.spec_info, "num_accept_tokens", None)
            # A graph runner pads it.
            lasts = [] if accepted is None else accepted[: len(lasts)].tolist()
        if len(states) != sum(counts):
            if len(states) != len(lasts):
                return
            counts = [1] * len(lasts)
        for row, last, held in zip(found.rows, lasts, states.split(counts), strict=True):
            mine[row.request] = row.cached + last - len(held), held.clone()
        while len(mine) > MOST:
            mine.popitem(last=False)

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
