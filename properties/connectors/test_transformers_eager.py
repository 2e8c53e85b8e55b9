"""Forwards of transformers that run again change no token and no random draw of the engine."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from paritybit.connectors.transformers.engine import FollowedCache
from paritybit.testing.replays import InMemory
from paritybit.watch.facts import Forward, Group, Layer, Row
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher

SLOTS, STEPS = 16, 9
LOGITS = torch.arange(8) * 0.3


class Decoder(nn.Module):
    """A layer whose slots are positions, and its engine: each forward draws the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = torch.randn(2, SLOTS, 2, generator=torch.Generator().manual_seed(0))
        self.ids, self.output_ids = torch.tensor([[3]]), torch.zeros(1, 4, dtype=torch.int32)
        self.runs = 0
        io = SimpleNamespace(get_cb_kwargs=lambda: (None, None, self.output_ids))
        compiled = {"_compiled_varlen": None, "_compiled_decode": None}
        self.runner = SimpleNamespace(inputs_and_outputs=io, **compiled)

    def forward(self, position: int) -> Any:
        """Return logits, float [1, 1, tokens]."""
        token = float(self.ids[0, 0])
        self.kv[:, position] = torch.tensor([[token, 1.0], [position, token]])
        keys, values = self.kv[:, : position + 1]
        read = (keys @ torch.tensor([0.3, 0.1])).softmax(0) @ values
        return SimpleNamespace(logits=torch.sin(read.sum() + LOGITS)[None, None])

    def compute(self, position: int) -> None:
        """Compute a position, and draw the next token."""
        self.runs, self.ids = self.runs + 1, self.ids.add_(1)
        logits = self(position).logits
        self.output_ids[0, :1] = torch.multinomial(logits[0].softmax(-1), 1)[0]

    def decode(self, watching: FollowedCache | None) -> list[Any]:
        """Decode STEPS tokens. Returns these and all state that the engine has afterwards."""
        torch.manual_seed(0)
        made = list[int]()
        for position in range(STEPS):
            run = functools.partial(self.compute, position)
            if watching is None:
                run()
            else:
                slots = {"full": torch.arange(position + 1)}
                row = Row("a", [0] * (position + 1), position, 1, slots)
                given = {"input_ids": self.ids, "logits_to_keep": torch.tensor([0])}
                requests = [SimpleNamespace(predicted=True)]
                batch: Any = SimpleNamespace(
                    kind="decode", size=1, padded=1, given=given, requests=requests
                )
                watching.watcher.begin(Forward("decode", (row,)))
                watching.run(self.runner, self, batch, run)
                watching.watcher.end()
            made.append(int(self.output_ids[0, 0]))
            self.ids[0, 0] = self.output_ids[0, 0]
        state = self.ids, self.output_ids, self.kv, torch.get_rng_state()
        return [made, *(one.tolist() for one in state)]


def test_repeated_forwards_leave_tokens_and_random_draws_of_the_engine_alone() -> None:
    watched, alone, watching = Decoder(), Decoder(), FollowedCache.__new__(FollowedCache)
    layer = Layer("layer 0", (watched.kv[0], watched.kv[1]))
    groups, journal = [Group("full", (layer,), reserved=frozenset())], InMemory(Path())
    watching.watcher = Watcher(
        groups, engine="toy", release="1", journal=journal, settings=Settings("")
    )
    watching.watcher.relations.streak = 1
    assert watched.decode(watching) == alone.decode(None)
    assert journal.counts["tried: wrong read"] >= STEPS - 2  # The first reads nothing.
    assert watched.runs > STEPS + STEPS // 2
    assert (journal.unsure, journal.found) == ([], [])
    assert not watched._forward_hooks
