"""Which forwards without a graph the connector of sglang repeats."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.sglang.engine import Engine


class Runner:
    """A model runner. It notes what the connector observes during each run of a batch."""

    def __init__(self, watching: Any) -> None:
        self.watching, self.seen = watching, list[object]()
        self.attn_backend = SimpleNamespace(forward_metadata="of the batch")
        self.token_to_kv_pool = SimpleNamespace()

    def _runs(self, forward_batch: Any, pp_proxy_tensors: Any, split_forward_count: int) -> Any:
        """Run a batch."""
        self.seen.append(self.watching.now)
        self.attn_backend.forward_metadata = f"of run {len(self.seen)}"
        return SimpleNamespace(logits_output=torch.tensor([float(len(self.seen))]))


def engine(kind: str, drafts: bool, due: dict[int, int], repeatable: bool) -> Any:
    """Return a connector whose watcher keeps what it may repeat."""
    now = SimpleNamespace(
        batch=SimpleNamespace(input_ids=torch.arange(3)),
        model=SimpleNamespace(drafts=drafts),
        forward=SimpleNamespace(kind=kind),
        replays=0,
        pieces=0,
    )
    kept: list[Any] = []

    def eager(replay: Any, again: Any) -> object:
        kept.append((replay, again))
        return replay.run()

    models = SimpleNamespace(once=None if repeatable else "ranks", states=SimpleNamespace(due=due))
    found: Any = Engine.__new__(Engine)
    found.now, found.watcher = now, SimpleNamespace(eager=eager, kept=kept)
    found.models, found.requests = models, "requests"
    return found


def test_a_second_run_of_a_prompt_is_not_observed_and_leaves_the_metadata_alone() -> None:
    watching = engine("extend", False, {}, True)
    runner = Runner(watching)
    first = watching.run_batch(Runner._runs, runner, watching.now.batch, None, 1)
    ((replay, again),) = watching.watcher.kept
    assert (replay.kind, replay.rows, replay.once) == ("extend forward", 3, None)
    assert replay.outputs()["output"].tolist() == first.logits_output.tolist() == [1.0]
    replay.run()
    assert replay.outputs()["output"].tolist() == [2.0]
    assert runner.seen == [watching.now, None]
    assert runner.attn_backend.forward_metadata == "of run 1"
    assert again()
    watching.now.pieces = 1
    assert not again()


@pytest.mark.parametrize(
    ("kind", "drafts", "due", "repeatable", "offered"),
    [
        ("mixed", False, {}, True, True),
        ("decode", False, {}, True, None),
        ("extend", True, {}, True, None),
        ("extend", False, {1: 2}, True, False),
        ("extend", False, {}, False, False),
    ],
)
def test_only_prompts_that_change_nothing_else_are_repeated(
    kind: str, drafts: bool, due: dict[int, int], repeatable: bool, offered: bool | None
) -> None:
    watching = engine(kind, drafts, due, repeatable)
    runner = Runner(watching)
    watching.run_batch(Runner._runs, runner, watching.now.batch, None, 1)
    assert [replay.once is None for replay, _ in watching.watcher.kept] == (
        [] if offered is None else [offered]
    )
