"""Which forwards of transformers without a graph are repeated, and what that leaves alone."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from paritybit.connectors.transformers.engine import Engine
from paritybit.testing.replays import InMemory
from paritybit.watch.facts import Forward, Group, Layer, Row
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher

SLOTS, VOCABULARY, STEPS = 16, 8, 9


class Model(nn.Module):
    """One layer that keeps the KV of a token in the slot of its position."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = torch.randn(2, SLOTS, 2, generator=torch.Generator().manual_seed(0))

    def forward(self, input_ids: Tensor, position: int) -> Any:
        """Return logits, float [1, 1, VOCABULARY]."""
        token = float(input_ids[0, 0])
        self.kv[:, position] = torch.tensor([[token, 1.0], [position, token]])
        keys, values = self.kv[:, : position + 1]
        read = (keys @ torch.tensor([0.3, 0.1])).softmax(0) @ values
        wave = torch.arange(VOCABULARY) * 0.3
        return SimpleNamespace(logits=torch.sin(read.sum() + wave)[None, None])


class Runner:
    """The part of a model runner that the connector knows."""

    def __init__(self, output_ids: Tensor, compiled: object = None) -> None:
        self.inputs_and_outputs = SimpleNamespace(get_cb_kwargs=lambda: (None, None, output_ids))
        self._compiled_varlen, self._compiled_decode = None, compiled


class Served:
    """One request that decodes. Each forward changes its input, and draws the next token."""

    def __init__(self) -> None:
        self.model = Model()
        self.input_ids, self.output_ids = torch.tensor([[3]]), torch.zeros(1, 4, dtype=torch.int32)
        self.runner = Runner(self.output_ids)
        layer = Layer("layer 0", (self.model.kv[0], self.model.kv[1]))
        self.journal = InMemory(Path())
        self.watcher = Watcher(
            [Group("full", (layer,), reserved=frozenset())],
            engine="toy",
            release="1",
            journal=self.journal,
            settings=Settings(""),
        )
        self.watcher.relations.streak = 1
        self.watching = Engine.__new__(Engine)
        self.watching.watcher = self.watcher
        self.runs, self.graphs, self.made = 0, False, list[int]()

    def batch(self) -> Any:
        """Return the batch of a step."""
        return SimpleNamespace(
            kind="decode",
            size=1,
            padded=1,
            given={"input_ids": self.input_ids, "logits_to_keep": torch.tensor([0])},
            requests=[SimpleNamespace(predicted=True)],
        )

    def compute(self, position: int) -> None:
        """Run the forward of a position."""
        self.runs, self.watching.graphed = self.runs + 1, self.graphs
        self.input_ids += 1
        logits = self.model(self.input_ids, position).logits
        self.output_ids[0, :1] = torch.multinomial(logits[0].softmax(-1), 1)[0]

    def serve(self, watched: bool = True) -> list[Any]:
        """Decode STEPS tokens and return all state that the engine has afterwards."""
        torch.manual_seed(0)
        for position in range(STEPS):
            slots = {"full": torch.arange(position + 1)}
            row = Row("a", [0] * (position + 1), position, 1, slots)
            if watched:
                self.watcher.begin(Forward("decode", (row,)))
                run = functools.partial(self.compute, position)
                self.watching.run(self.runner, self.model, self.batch(), run)
                self.watcher.end()
            else:
                self.compute(position)
            self.made.append(int(self.output_ids[0, 0]))
            self.input_ids[0, 0] = self.output_ids[0, 0]
        assert self.journal.unsure == []
        return [
            self.made,
            self.input_ids.tolist(),
            self.output_ids.tolist(),
            self.model.kv.tolist(),
            torch.get_rng_state().tolist(),
        ]


def test_repeated_forwards_leave_tokens_and_random_draws_of_the_engine_alone() -> None:
    watched, alone = Served(), Served()
    assert watched.serve() == alone.serve(watched=False)
    assert watched.journal.counts["tried: wrong read"] >= STEPS - 2  # The first reads nothing.
    assert watched.runs > STEPS + STEPS // 2
    assert watched.journal.found == []
    assert not watched.model._forward_hooks
