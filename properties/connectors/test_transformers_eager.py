"""Forwards of transformers that run again change no token and no random draw of the engine."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch
from torch import nn

from paritybit.connectors.sampling import HIDDEN, LOGITS, UNSEEN, UNTOLD, Recording
from paritybit.connectors.transformers.batch import heads
from paritybit.connectors.transformers.engine import FollowedCache
from paritybit.testing.replays import InMemory
from paritybit.watch.checks import wrong_row
from paritybit.watch.facts import Forward, Group, Layer, Row, RowValues
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher
from properties.connectors.parts import Part, hooked

SLOTS, STEPS = 16, 9
STEADY = torch.arange(8) * 0.3


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
        return SimpleNamespace(logits=torch.sin(read.sum() + STEADY)[None, None])

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
                state = Part(request_id="a")
                one = SimpleNamespace(state=state, cached=position, computed=1, predicted=True)
                sizes = {"size": 1, "padded": 1, "predicted": 1}
                batch: Any = SimpleNamespace(kind="decode", given=given, requests=[one], **sizes)
                watching.watcher.begin(Forward("decode", (row,)))
                watching.run(self.runner, self, batch, run)
                watching.watcher.end()
            made.append(int(self.output_ids[0, 0]))
            self.ids[0, 0] = self.output_ids[0, 0]
        held = self.ids, self.output_ids, self.kv, torch.get_rng_state()
        return [made, *(one.tolist() for one in held)]


def test_repeated_forwards_leave_tokens_and_random_draws_of_the_engine_alone() -> None:
    watched, alone, watching = Decoder(), Decoder(), FollowedCache.__new__(FollowedCache)
    watching.recording, watching.states = Recording(), WeakValueDictionary()
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


def test_a_token_that_is_recorded_for_another_request_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watching, given = FollowedCache.__new__(FollowedCache), list[RowValues]()
    monkeypatch.setattr(watching, "rows", lambda _, values: given.extend(values))
    watching.recording, watching.states = Recording(), WeakValueDictionary()
    states = [Part(initial_tokens=[0, 0], generated_tokens=list[int]()) for _ in range(2)]
    watching.states |= dict(zip("ab", states, strict=True))
    made = ["a", "b", "gone"], [2, 2, 5], [[7], [8], [9]]
    watching.recording.sampled(*made, [[-1.0], [-1.0], [-1.0]])

    def update(processor: Any) -> None:
        for state in states:
            state.generated_tokens.append(7)
            state.logprobs = [-5.0, -2.0]  # It began again.

    hooked(watching.records, update, None)
    found, likely = given
    assert (likely.held.tolist(), likely.right.tolist()) == ([-2.0], [-1.0])
    assert (found.held.tolist(), found.right.tolist()) == ([7, 7], [7, 8])
    assert found.explain is not None
    assert found.explain(1) == "it was sampled for request a"


@pytest.mark.parametrize("kept", [False, True])
def test_hidden_states_and_logits_of_another_request_are_found(kept: bool) -> None:
    hidden, logits = torch.rand(1, 6, 4), torch.rand(1, 6, 8)  # The last row is padding.
    parts = zip("abc", (0, 3, 2), (2, 2, 1), (True, False, True), strict=True)
    requests = [
        SimpleNamespace(
            state=SimpleNamespace(request_id=name), cached=old, computed=new, predicted=last
        )
        for name, old, new, last in parts
    ]
    given = {"logits_to_keep": torch.tensor([1, 4])} if kept else {}
    batch: Any = SimpleNamespace(requests=requests, size=5, given=given)
    last = torch.tensor([1, 4])
    noted = {
        "hidden": hidden,
        "given": hidden[:, last] if kept else hidden,
        "logits": logits[:, last] if kept else logits,
        "scores": logits[:, last],
    }

    def wrong(**more: torch.Tensor) -> list[tuple[str, str, str | None]]:
        return [
            (one.name, one.requests[row], one.explain(row) if one.explain else None)
            for one in heads(batch, {**noted, **more})
            for row in wrong_row.differing(one).nonzero().flatten().tolist()
        ]

    assert wrong() == []
    token = "position 1 of request a" if not kept else "request a"
    assert wrong(scores=logits[:, [1, 1]]) == [(LOGITS, "c", f"it is that of {token}")]
    if kept:  # Else the head gets all hidden states.
        found = (HIDDEN, "a", "it is that of position 4 of request b")
        assert wrong(given=hidden[:, [3, 4]]) == [found]
    assert [one.untried for one in heads(batch, noted, [Part()])][-1] is not None
    assert {one.untried for one in heads(batch, {})} == {UNSEEN}


@pytest.mark.parametrize("kept", [False, True])
def test_logits_after_the_temperature_of_another_request_are_found(kept: bool) -> None:
    parts = zip("ab", ({"temperature": 0.5}, {}), strict=True)
    states = [Part(request_id=name, logit_processor_kwargs=asked) for name, asked in parts]
    requests = [Part(state=one, cached=0, computed=2, predicted=True) for one in states]
    given = {"logits_to_keep": torch.tensor([1, 3])} if kept else {}
    batch: Any = SimpleNamespace(requests=requests, size=4, given=given)
    hidden, logits, last = torch.rand(1, 4, 4), torch.rand(1, 4, 8), torch.tensor([1, 3])
    scores = logits[:, last] / torch.tensor([0.5, 2.0])[:, None]
    scores[0, 1, logits[0, 3].argmin()] = -torch.inf  # It is not among the seven likeliest.
    noted = {
        "hidden": hidden,
        "given": hidden[:, last] if kept else hidden,
        "logits": logits[:, last] if kept else logits,
    }
    kinds: dict[str, dict[str, Any]] = {
        "Temperature": {"temperature": 2.0},
        "TopK": {"top_k": 7},
        "TopP": {"top_p": 1.0},
    }
    processors = [type(f"{one}LogitsWarper", (Part,), {})(**own) for one, own in kinds.items()]
    for held, wrong in ((scores, []), (scores.flip(1), [0, 1])):
        *_, judged = heads(batch, {**noted, "scores": held}, processors)
        assert (judged.name, list(judged.requests)) == (UNTOLD, ["a", "b"])
        assert wrong_row.differing(judged).nonzero().flatten().tolist() == wrong
