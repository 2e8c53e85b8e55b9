"""A request that gets a token of another's, or as many as it has not, is seen at that step."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep import overlapped, scheduler, speculation
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.schedules.schedule import Decode, Prefill, Schedule, Verify
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.model import Output
from paritybit.reference.speculative import accepted_path

pytestmark = pytest.mark.usefixtures("captures_when_needed")

SCHEDULE = Schedule((Prefill((9, 3), 4), Prefill((), 9), Decode((0, 1)), Verify((0, 1), 0)), seed=1)
"""The second request of the first step is prefilled whole, the first one in two chunks."""

Plant = Callable[[pytest.MonkeyPatch], None]


def into_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the tokens sampled to the first requests of a batch."""

    def keep(book: RequestBook, batch: ForwardBatch, output: Output, rows: Sequence[int]) -> None:
        cells = batch.token_cells.take(batch.last_rows) if batch.extends else batch.token_cells
        book.tokens.view(-1)[cells[: len(rows)] + 1] = output["logits"].argmax(-1)[list(rows)]

    for module in (scheduler, overlapped):
        monkeypatch.setattr(module, "keep_sampled", keep)


def beyond_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept one draft more than is accepted."""
    accepted = accepted_path

    def longer(tree: Any, greedy: list[int], at_least: int) -> list[int]:
        return accepted(tree, greedy, at_least + 1)

    monkeypatch.setattr(speculation, "accepted_path", longer)


@pytest.mark.usefixtures("captures_when_needed")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("plant", "step", "words"),
    [
        (into_the_first_rows, 0, "token 3 of request 1 is "),
        (beyond_the_path, 3, "the number of tokens of request 0 is "),
    ],
)
def test_a_token_that_no_logits_of_its_request_say_is_seen_at_its_step(
    plant: Plant, step: int, words: str, *, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lockstep = Lockstep(TrialConfig("decode", overlap=overlap, buckets=(2, 4)), {"next_tokens"})
    assert not lockstep.play(SCHEDULE).violations
    plant(monkeypatch)
    outcome = lockstep.play(SCHEDULE)
    assert outcome.error is None
    found = next(one for one in outcome.violations if one.property == "next_tokens")
    assert (found.step, found.message.partition(words)[0]) == (step, "in the graph run, ")
