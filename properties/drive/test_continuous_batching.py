"""How transformers is fetched and started, and what stands in for graphs while it captures."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paritybit.harness.errors import MalformedError
from paritybit.reference.ops import Ops

from paritybit.drive import ENGINES
from paritybit.drive.adapters import adapter, adapter_of
from paritybit.drive.answers import Answer
from paritybit.drive.script import Part, Planned, Sampling
from paritybit.drive.transformers import plain, serving, stand_ins
from paritybit.drive.transformers.settings import TransformersServed
from paritybit.engines.graphs import CpuGraph
from paritybit.engines.packages import SGLANG, TRANSFORMERS
from paritybit.testing.replays import InMemory
from paritybit.watch import journal


def test_the_engine_is_chosen_by_the_package_of_a_release_or_a_folder(tmp_path: Path) -> None:
    for one in map(adapter, ENGINES):
        name, marker = one.package.name, one.package.marker
        assert adapter_of(f"{name}==5.0.0").package is one.package
        for inside in (tmp_path / name, tmp_path / f"{name}-src/src"):
            (inside / name / marker).mkdir(parents=True)
        assert adapter_of(str(tmp_path / name)).package is one.package
        assert adapter_of(str(tmp_path / f"{name}-src")).package is one.package
        (tmp_path / "all" / name / marker).mkdir(parents=True)
    both = tmp_path / f"{SGLANG.name}-src/src"
    (both / TRANSFORMERS.name / TRANSFORMERS.marker).mkdir(parents=True)
    assert adapter_of(str(both)).package is SGLANG  # It imports the other.
    with pytest.raises(MalformedError, match="several engines"):
        adapter_of(str(tmp_path / "all"))
    with pytest.raises(MalformedError, match="is not an engine"):
        adapter_of("nothing")


def test_a_capture_changes_nothing_and_a_replay_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuGraph, "ops", Ops(), raising=False)
    kept, graph = torch.zeros(3), CpuGraph()

    def capture(runner: Any, forward: Any, stream: Any, *arguments: Any) -> None:
        with stand_ins.captured(graph, stream=stream):
            forward(*arguments)
        assert kept.tolist() == [0, 0, 0]

    runner = SimpleNamespace(cache=SimpleNamespace(cache_tensor=kept))
    stand_ins.keeping(capture)(runner, kept.add_, None, torch.ones(3))
    assert not stand_ins.KEPT
    graph.replay()
    assert kept.tolist() == [1, 1, 1]


class Likely(torch.nn.Module):
    """A model after whose token t the token t + 1 is the likeliest."""

    def forward(self, ids: torch.Tensor) -> Any:
        """Return logits [1, n, 8]."""
        return SimpleNamespace(logits=torch.nn.functional.one_hot((ids + 1) % 8, 8) * 2.0)

    def _get_logits_processor(self, drawn: dict[str, Any]) -> Any:
        least = 0.0 if drawn["top_k"] > 1 else 2.0
        return lambda ids, scores: scores.masked_fill(scores < least, -torch.inf)


RIGHT = float(torch.tensor([2.0, *[0.0] * 7]).log_softmax(0)[0])


@pytest.mark.parametrize(
    ("tokens", "likelihoods", "how", "wrong"),
    [
        ([2, 3], [], {}, False),
        ([2, 4], [], {}, True),
        ([2, 3], [RIGHT, RIGHT], {}, False),
        ([2, 3], [RIGHT, float("nan")], {}, True),
        ([2, 4], [RIGHT, RIGHT - 2], {"top_k": 5}, False),
        ([2, 4], [RIGHT, RIGHT - 1], {"top_k": 5}, True),
        ([2, 3], [RIGHT, 0.0], {"top_k": 2}, False),  # With one token less, nothing else is left.
    ],
)
def test_an_answer_is_that_of_the_model_without_a_cache(
    tokens: list[int], likelihoods: list[float], how: dict[str, Any], wrong: bool
) -> None:
    given = {"top_p": 1.0, **how} if how else {}
    found = plain.difference(Likely(), Answer([0, 1], 2, tokens=tokens), likelihoods, dict, given)
    assert (found is not None) == wrong


def test_an_output_must_be_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, found = list[str](), InMemory(Path())
    monkeypatch.setattr(journal, "of_process", lambda: found)
    engine = serving.Transformers(TransformersServed(streamed=True, samples=2))
    engine.manager = SimpleNamespace(add_request=print)
    engine.player = SimpleNamespace(ended=lambda name, tokens: ended.append(name))  # type: ignore[assignment]

    def hear(name: str, tokens: list[int], done: bool) -> list[str]:
        output = SimpleNamespace(
            **{"request_id": name, "generated_tokens": tokens, "prompt_ids": [5]},
            **{"is_finished": lambda: done, "logprobs": [-1.0] * len(tokens)},
        )
        engine._hear(output)
        return [one.text.partition(" is not")[0] for one in found.found]

    one = Planned("a", (Part("a", 1),), 3, sampling=Sampling(stop_token_ids=(7,)))
    assert engine.arrive(one, [5]).keywords["eos_token_id"] == [serving.END, 7]
    assert hear("a", [4], done=False) == []
    assert hear("a", [4, 7], done=True) == ended == []
    assert hear("a__child#0", [7, 4, 4], done=True) == ["request a__child#0"]
    assert ended == ["a"]
    assert hear("a", [4], done=False)[1:] == ["request a is answered after it ended or was aborted"]
    shared = [4]
    engine.arrive(replace(one, name="b"), [5])
    hear("b", shared, done=False)
    shared.append(7)
    assert hear("b", shared, done=True)[2:] == ["request b"]
    assert "changed what it had delivered" in found.found[-1].text


@pytest.mark.parametrize("running", [[], ["a__child#0"], ["b"], ["c"]])
def test_kv_of_a_request_moves_where_its_abort_leaves_others(running: list[str]) -> None:
    """After an offload, the engine stalls without a running request."""
    engine, cancelled = serving.Transformers(TransformersServed(samples=2)), Queue[str]()
    cancelled.put("c")
    engine.manager = SimpleNamespace(
        batch_processor=SimpleNamespace(
            scheduler=SimpleNamespace(active_requests=dict.fromkeys(running)),
            offloading_manager=SimpleNamespace(_request_id_to_cpu_blocks={"a": {}}),
        ),
        cancel_queue=cancelled,
    )
    assert bool(engine.moves("a")) == (running == ["b"])
    assert not engine.moves("d")


def test_no_request_arrives_while_the_loop_stops() -> None:
    """The engine would never serve it."""
    engine, called = serving.Transformers(TransformersServed()), list[str]()
    status = SimpleNamespace(FLUSH_AND_STOP=1, request_stop=lambda *_: called.append("stop"))
    engine.manager = SimpleNamespace(
        output_router=SimpleNamespace(output_queue=Queue()),
        background_thread_status=status,
        _wake_up_loop=Event(),
    )
    planned: list[Any] = [[engine._flush], [], [partial(called.append, "arrives")]]
    engine.player = SimpleNamespace(open=0, poll=lambda: planned.pop(0))  # type: ignore[assignment]
    engine.manager.batch_processor = SimpleNamespace(cache=SimpleNamespace(evict_cached_blocks=int))
    for _ in range(4):
        engine._poll()
    assert called == ["stop"]
    engine._stopping = False  # The loop starts again.
    engine._poll()
    assert called == ["stop", "arrives"]
