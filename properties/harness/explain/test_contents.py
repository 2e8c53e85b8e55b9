"""What a request has that its tokens do not say is named, with the lines that made it so."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from paritybit.harness.checks.explanation import explanation, observe
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.schedule_properties.dense_agreement import bound_of
from paritybit.harness.explain.facts import Cause
from paritybit.harness.explain.further_runs.contents import Contents
from paritybit.harness.explain.further_runs.followed import play
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Pair, subject_alone
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.harness.lockstep.requests import Request
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Resume,
    Retract,
    Schedule,
    Verify,
)
from paritybit.reference.config import Kind
from paritybit.reference.pool import HybridKVPool
from paritybit.reference.state_pool import Section, StatePool

SIZES: dict[str, Any] = {"buckets": (4,), "token_buckets": (12,)}

CAUGHT_UP = (Admit(12, 5), Extend(0, 7), Admit(3, 99), DraftExtend((0, 1)))
VERIFIED = (*CAUGHT_UP, Draft((0, 1)), Verify((0, 1), 2), DraftExtend((0, 1)), Decode((0, 1)))
BACK = (Retract(0), Decode((0,)), Resume(0), DraftExtend((0, 1)), Verify((0, 1), 1))
SCHEDULE = Schedule((*VERIFIED, Evict(0), *BACK, Decode((0, 1, 2))), seed=3)


@pytest.mark.parametrize(
    ("runner", "model", "page_size", "dtype"),
    [
        ("eagle_draft", "gemma3", 4, "float32"),
        ("frozen_kv_mtp", "mimo", 1, "bfloat16"),
        ("decode", "gpt_oss", 1, "float32"),
    ],
)
def test_all_that_a_request_has_is_right_in_a_clean_play(
    runner: str, model: str, page_size: int, dtype: str
) -> None:
    trial = TrialConfig(runner, model, page_size=page_size, dtype=dtype, **SIZES)
    pair = Pair(trial, engines=subject_alone, keeps_state=False)
    with torch.inference_mode():
        for serial in range(2):
            contents = Contents(pair, serial, bound_of(pair.models))
            play(pair, SCHEDULE, len(SCHEDULE.steps), contents.look)
            assert contents.at is None, [one.name for one in contents.wrong]
            assert len(contents.tokens) > 3


def last_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the KV of the last token of an accepted path where it was drafted."""
    move = HybridKVPool.move

    def short(self: HybridKVPool, kind: Kind, sources: Sequence[int], to: Sequence[int]) -> None:
        move(self, kind, sources[:-1], to[:-1])

    monkeypatch.setattr(HybridKVPool, "move", short)


def state_of_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the state of the first token of a path."""
    accept = StatePool.accept
    monkeypatch.setattr(StatePool, "accept", lambda self, slot, node: accept(self, slot, 0))


def drafted_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that comes back is taken to have the draft model's KV that it had."""

    def keep(self: Request, name: str, value: Any) -> None:
        if name != "drafted" or value or "drafted" not in vars(self):
            object.__setattr__(self, name, value)

    monkeypatch.setattr(Request, "__setattr__", keep)


def overwritten(change: Callable[[RequestBook, Request], Any]) -> Callable[..., None]:
    """Return a fault that changes something of the first request that is chosen to run."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        choose = RequestBook.choose

        def changing(self: RequestBook, ready: Sequence[Request], picks: Any) -> list[Request]:
            found = choose(self, ready, picks)
            change(self, found[0])
            return found

        monkeypatch.setattr(RequestBook, "choose", changing)

    return plant


def first_token(book: RequestBook, request: Request) -> None:
    """Change a token that was computed long ago."""
    book.tokens[request.token_row, 0] = (request.prompt_tokens[0] + 1) % book.config.vocab


def state_of_nobody(book: RequestBook, request: Request) -> None:
    """Forget the state of a request."""
    assert request.allocation is not None
    book.pools.state.sections[Section.RECURRENT][request.allocation.state_slot, 0] = 0


@pytest.mark.parametrize(
    ("plant", "what", "found", "function"),
    [
        (last_not_moved, "target KV of token ", "not what lies in ", "_move_kv"),
        (state_of_the_root, "recurrent state after token ", "not what lies in state", "accept"),
        (drafted_kept, "draft KV of token 0 in ", "nowhere", "_leave"),
        (overwritten(first_token), "token 0 of request ", "not what lies in token row ", ""),
        (overwritten(state_of_nobody), "recurrent state after ", "not what lies in state", ""),
    ],
)
def test_what_is_wrong_of_a_request_is_named_with_the_lines_that_made_it_so(
    plant: Callable[[pytest.MonkeyPatch], None],
    what: str,
    found: str,
    function: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    cause = cause_of()
    assert cause.blame == "request contents"
    assert cause.held is not None
    assert cause.held.what.startswith(f"the {what}")
    assert cause.held.found.startswith(found) and cause.held.both
    assert any(line.what.endswith(function) for line in cause.made[:3])


def cause_of() -> Cause:
    """Play the schedule; return the cause of what the oracle sees."""
    lockstep = Lockstep(TrialConfig("eagle_draft", "gemma3", **SIZES), {"dense_agreement"})
    outcome, timeline = observe(lockstep, SCHEDULE)
    assert outcome.error is None, outcome.error
    explained = explanation(lockstep, SCHEDULE, outcome, timeline, "dense_agreement")
    assert explained is not None
    return explained.cause
