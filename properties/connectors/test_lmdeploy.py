"""LMDeploy's scheduler runs ahead of its model, and its order counts."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paritybit.connectors.lmdeploy.engine import Lmdeploy
from paritybit.watch.journal import Journal
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher
from properties.connectors.parts import Part, hooked

PAGE, BLOCKS = 2, 16


class Engine:
    """Computes one request after another, in blocks that the test names."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "process-1.jsonl")
        self.connector = Lmdeploy("0", self.journal, Settings(str(folder)))
        self.keys = torch.zeros(BLOCKS, PAGE, 1, 4)
        config = SimpleNamespace(
            **dict.fromkeys(("enable_prefix_caching", "window_size", "quant_policy"), 0),
            **{"block_size": PAGE, "kernel_block_size": PAGE, "num_gpu_blocks": BLOCKS},
            **{"num_reserved_gpu_blocks": 1, "states_shapes": []},
        )
        cache = SimpleNamespace(cache_config=config, gpu_cache=[(self.keys,)], block_caches={})
        self.agent = Part(
            cache_config=config,
            cache_engine=cache,
            dist_config=SimpleNamespace(world_size=1),
            backend_config=SimpleNamespace(eager_mode=True),
            model_config=SimpleNamespace(vocab_size=100, model_paradigm="ar"),
        )
        hooked(self.connector.made, lambda agent: None, self.agent)

    def request(self, number: int, tokens: list[int], blocks: list[int]) -> Any:
        """Return a request with its blocks, and report them as allocated."""
        hooked(self.connector.allocate, lambda: np.array(blocks))
        return Part(
            seq_id=number,
            history_cache=np.array(tokens),
            num_valid_ids=len(tokens),
            num_ignored_history=0,
            adapter_name=None,
            history_embeddings=[],
            history_multimodals=SimpleNamespace(empty=lambda: True),
            blocks=np.array(blocks),
        )

    def send(self, request: Any, cached: int, computed: int) -> Any:
        """Send a forward, and return what the model gets."""
        inputs = SimpleNamespace(
            history_lengths=torch.tensor([cached]), seq_length=torch.tensor([computed])
        )
        sent = {"inputs": inputs, "delta": None, "running": [request]}
        if cached:
            sent |= {"inputs": None, "delta": SimpleNamespace(max_q_seqlen=computed)}
        tables = SimpleNamespace(get_block_tables=lambda rows: [row.blocks for row in rows])
        hooked(self.connector.send, lambda maker: sent, SimpleNamespace(scheduler=tables))
        known = [*request.history_cache, *[0] * (cached + computed)][cached : cached + computed]
        return SimpleNamespace(
            is_dummy=False,
            is_decoding=bool(cached),
            seq_length=[computed],
            max_q_seqlen=computed,
            cached=cached,
            ids=torch.tensor([known]),
            table=torch.as_tensor(request.blocks)[None],
        )

    def run(self, inputs: Any) -> None:
        """Run the model for a forward that was sent."""
        first, last = inputs.cached, inputs.cached + inputs.max_q_seqlen
        at = torch.arange(first, last)
        counts = {"q_seqlens": [last - first], "kv_seqlens": [last], "q_start_loc": [0]}
        counts |= {"cu_seqlens_q": [0, last - first], "cu_seqlens_k": [0, last]}
        given = SimpleNamespace(**{name: torch.tensor(one) for name, one in counts.items()})
        given.block_offsets = inputs.table
        named = {"input_ids": inputs.ids, "position_ids": at[None], "attn_metadata": given}

        def model(runner: Any, **kwargs: Any) -> Any:
            written = inputs.ids[0].float() + at / 7 + 1
            self.keys[inputs.table[0, at // PAGE], at % PAGE] = written[:, None, None]
            read = self.keys[inputs.table[0, : -(-last // PAGE)]].flatten(0, 1)[:last]
            return {"hidden_states": read.sum(0)}

        def forward(agent: Any, inputs: Any) -> Any:
            return hooked(self.connector.eager, model, self, **named)

        hooked(self.connector.forward, forward, self.agent, inputs)

    def free(self, request: Any) -> None:
        """Free the blocks of a request."""
        hooked(self.connector.free, lambda pool, blocks: None, self, request.blocks)

    @property
    def found(self) -> set[str]:
        """The checks that have a finding."""
        self.journal.settle()
        assert not [one for one in self.journal.said if json.loads(one)[0] == "undecided"]
        return {key.split(" | ")[0] for key in self.journal.findings}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine that is watched."""
    made = Engine(tmp_path)
    yield made
    made.journal.end()


def test_blocks_freed_after_a_forward_was_sent_are_not_in_use(engine: Engine) -> None:
    request = engine.request(0, [5, 6, 7], [1, 2])
    engine.run(engine.send(request, 0, 3))
    sent = engine.send(request, 3, 1)
    engine.free(request)  # Its last token was an end.
    later = engine.request(1, [8, 9], [1])
    engine.run(sent)
    engine.run(engine.send(later, 0, 2))
    assert engine.found == set()
    assert engine.journal.counts["forwards"] == 3
    assert engine.journal.counts["reads"] == 3


def test_blocks_freed_before_a_forward_is_sent_are_in_use(engine: Engine) -> None:
    request = engine.request(0, [5, 6, 7], [1, 2])
    engine.run(engine.send(request, 0, 3))
    engine.free(request)
    engine.run(engine.send(request, 3, 1))
    assert engine.found == {"freed in use"}


def test_another_block_in_the_table_of_the_model_is_found(engine: Engine) -> None:
    request = engine.request(0, [5, 6, 7], [1, 2])
    engine.run(engine.send(request, 0, 3))
    sent = engine.send(request, 3, 1)
    sent.table = torch.tensor([[3, 2]])
    engine.run(sent)
    assert "wrong list" in engine.found


def test_a_forward_sent_after_a_hook_failed_is_not_taken_for_the_one_before(engine: Engine) -> None:
    request = engine.request(0, [5, 6, 7, 8, 9], [1, 2, 3])
    engine.run(engine.send(request, 0, 3))
    sent = engine.send(request, 3, 1)
    engine.connector.missed()
    engine.send(request, 4, 1)
    engine.run(sent)
    assert not engine.journal.findings
    (said,) = [one for one in engine.journal.said if json.loads(one)[0] == "undecided"]
    assert "another order" in said


def test_what_is_sampled_after_a_skipped_forward_is_not_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the GPU, and reading it would wait."""
    monkeypatch.setattr(Watcher, "due", lambda _, *kind: kind != ("prefill", 1))
    engine.run(engine.send(engine.request(0, [5, 6, 7], [1, 2]), 0, 3))
    assert engine.journal.counts["skipped_forwards"] == 1
    monkeypatch.setattr(engine.connector, "rows", None)
    hooked(engine.connector.sample, lambda *_: None, engine.agent, None, None, None, None)
