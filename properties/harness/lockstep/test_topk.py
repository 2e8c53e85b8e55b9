"""Drafts of one branch and of two."""

from collections import defaultdict
from typing import Any

import pytest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TOPK, TrialConfig
from paritybit.harness.schedules.schedule import (
    Admit,
    Draft,
    DraftExtend,
    Schedule,
    Step,
    Verify,
)
from paritybit.reference.batch import Mode, RequestSpan
from torch import Tensor

SIZES: dict[str, Any] = {"buckets": (2, 4), "token_buckets": (4, 12)}


SPECULATE: tuple[Step, ...] = (
    *(Admit(5, 5), Admit(9, 9), DraftExtend((0, 1)), Draft((0, 1)), Verify((0, 1), 1)),
    *(DraftExtend((0, 1)), Draft((1,)), Verify((1,), 0)),
    *[Verify((0, 1), 1)] * 3,
)
"""Two requests that are drafted for and verified, padded and in each other's company."""


@pytest.mark.parametrize("topk", TOPK)
@pytest.mark.parametrize(("runner", "slots"), [("eagle_draft", 3), ("frozen_kv_mtp", 0)])
def test_a_draft_keeps_topk_branches(runner: str, slots: int, topk: int) -> None:
    """Checks what is allocated, drafted, verified and accepted."""
    trial = TrialConfig(runner, topk=topk, page_size=4, **SIZES)
    lockstep = Lockstep(trial, PROPERTIES)
    spans, widths = defaultdict[Mode, list[RequestSpan]](list), set[int]()

    def seen(place: int, step: Step, observation: Any, new: Any) -> None:
        spans[observation.mode] += observation.graph.spans
        widths.update(observation.static[name].shape[1] for name in named(observation.static))

    outcome = lockstep.play(Schedule(SPECULATE, seed=3), seen)
    assert (outcome.error, outcome.violations) == (None, ())
    assert widths == {topk}
    drafts = [span for mode, found in spans.items() if mode.drafts for span in found]
    assert {span.end - span.begin for span in drafts} == {slots * topk}
    assert {span.branches for span in drafts} == {topk}
    parents = {tuple(parent for _, parent in span.tree) for span in spans[Mode.TARGET_VERIFY]}
    assert (parents == {(-1, 0, 1, 2)}) is (topk == 1)
    assert bool(outcome.events["accepted beside the first branch"]) is (topk == 2)


def named(static: dict[str, Tensor]) -> set[str]:
    """Return which static inputs hold a value of each branch of a request."""
    return {"topk_p", "topk_index"} & set(static)
