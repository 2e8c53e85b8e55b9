"""The hidden states that sglang's draft models get are those of their own tokens."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.connectors.hooking import maybe
from paritybit.connectors.sampling import UNSEEN, Made
from paritybit.connectors.sglang.drafts import (
    BEGUN,
    SAMPLED,
    SELECTED,
    TAKEN,
    DraftStates,
    sampled,
)
from paritybit.connectors.sglang.graphs import eager
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.checks import wrong_row
from paritybit.watch.facts import Forward, Row, RowValues
from properties.connectors.parts import Part

DRAFTED = 4
"""The number of drafts of a request, of which three are on its path: 0, 2, 3."""

WIDTH = 8


def forward(mode: str, ids: Sequence[int], **info: Any) -> Any:
    return Part(forward_mode=Part(name=mode), input_ids=torch.tensor(ids), spec_info=Part(**info))


def rows_of(*computed: int, branches: int = 1) -> Rows:
    found = Rows()
    for at, count in enumerate(computed):
        for _ in range(branches):
            found.add(at, Row("ab"[at], [0] * (5 + count), 5, count, {}))
    return found


def wrong(values: Iterable[RowValues]) -> list[str]:
    """Return what is judged wrongly, with its request."""
    return [
        f"{one.name} {one.requests[at]} {one.explain(at) if one.explain else ''}".strip()
        for one in values
        if one.untried is None
        for at in wrong_row.differing(one).nonzero().flatten().tolist()
    ]


def tree() -> tuple[DraftStates, Tensor]:
    """Return what follows a verification of two trees of drafts, and its hidden states."""
    states, hidden = DraftStates(), torch.randn(2 * DRAFTED, WIDTH)
    links = {
        "retrieve_next_token": torch.tensor([[1, -1, 3, -1]] * 2),
        "retrieve_next_sibling": torch.tensor([[-1, 2, -1, -1]] * 2),
    }
    ids = [10, 11, 12, 13, 20, 21, 22, 23]
    batch = forward("TARGET_VERIFY", ids, draft_token_num=DRAFTED, topk=2, **links)
    states.computed(batch, rows_of(3, 3, branches=2), Part(hidden_states=hidden))
    return states, hidden


PATHS = [0, 2, 3, 1, 4, 6, 7, 5]
"""The drafts of both requests, with the accepted ones first."""


def extend(hidden: Tensor, accepted: Sequence[int]) -> Any:
    ids = [12, 13, 99, 0, 22, 23, 99, 0]
    given = {"hidden_states": hidden, "num_accept_tokens": torch.tensor(accepted)}
    return forward("DRAFT_EXTEND_V2", ids, **given)


@pytest.mark.parametrize("moved", [True, False])
def test_accepted_tokens_of_a_tree_come_with_their_own_hidden_states(moved: bool) -> None:
    states, hidden = tree()
    given = hidden[PATHS] if moved else hidden
    found = wrong(states.given(extend(given, [1, 3]), rows_of(DRAFTED, DRAFTED)))
    whose = [f"{TAKEN} b it is that of token {at} of request b" for at in (1, 2)]
    assert found == ([] if moved else whose)


def test_a_token_that_is_no_draft_is_not_judged() -> None:
    states, hidden = tree()
    batch = extend(hidden, [2, 1])
    batch.input_ids[0] = 77
    values = [*states.given(batch, rows_of(DRAFTED, DRAFTED))]
    assert [one.requests for one in values if one.untried] == [["a"]]
    assert not wrong(values)
    batch.spec_info.num_accept_tokens = None  # Of a release with another name.
    (value,) = (one for one in states.given(batch, rows_of(DRAFTED, DRAFTED)) if one.untried)
    assert value.requests == ["a", "b"]
    states.forget()
    (value,) = states.given(batch, rows_of(DRAFTED, DRAFTED))
    assert (value.requests, value.untried) == (["a", "b"], UNSEEN)


@pytest.mark.parametrize("rolled", [0, 1])
def test_prompts_come_with_their_own_hidden_states(rolled: int) -> None:
    states, hidden = DraftStates(), torch.randn(5, WIDTH)
    states.computed(forward("EXTEND", [1, 2, 3, 4, 5]), rows_of(3, 2), Part(hidden_states=hidden))
    batch = forward("EXTEND", [2, 3, 9, 5, 9], hidden_states=hidden.roll(rolled, 0))
    found = wrong(states.given(batch, rows_of(3, 2)))
    assert [one.split()[5] for one in found] == [*"aaabb"] * rolled


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("selected", [True, False])
def test_draft_steps_begin_with_the_states_of_the_last_accepted_token(
    selected: bool, late: int
) -> None:
    states, found = DraftStates(), rows_of(DRAFTED, DRAFTED)
    hidden, index = torch.randn(2 * DRAFTED, WIDTH), torch.tensor([0, 6]) - late
    output = hidden[index] if selected else hidden
    given = extend(hidden, [1, 3]), found, Part(logits_output=Part(hidden_states=output))
    judged = wrong(states.returns(*given, index if selected else None))
    assert judged == [f"{SELECTED} {one}" for one in "ab"] * (selected and late)
    steps = forward("DECODE", [0, 0], hidden_states=hidden[index])
    judged = wrong(states.given(steps, rows_of(1, 1)))
    last = [
        f"{BEGUN} a it is that of token 3 of request b",
        f"{BEGUN} b it is that of token 1 of request b",
    ]
    assert judged == ([] if selected or not late else last)
    steps = forward("DECODE", [0, 0], hidden_states=hidden[index.flip(0)])
    assert len(wrong(states.given(steps, rows_of(1, 1)))) == 2
    there = [states.last(one) for one in "ab"]
    states.forget()
    (value,) = states.given(steps, rows_of(1, 1))
    assert value.untried
    assert value.requests == ["a", "b"]
    for name, sums in zip("ab", reversed(there), strict=True):  # They come from another engine.
        states.brought(name, sums)
    judged = wrong(states.given(steps, rows_of(1, 1)))
    assert len(judged) == (2 if late and not selected else 0)


def test_a_draft_model_gets_the_tokens_that_were_just_sampled() -> None:
    made: dict[str, dict[int, list[Made]]]
    made = {
        "a": {8: [Made(7, {}), Made(9, {})]},
        "b": {7: [Made(9, {})]},
    }  # A position may be sampled again.
    batch = forward("EXTEND", [2, 3, 9, 5, 9])
    assert not wrong(sampled(batch, rows_of(3, 2), made))
    batch.input_ids[2], made["b"][7] = 7, [Made(5, {})]
    assert wrong(sampled(batch, rows_of(3, 2), made)) == [f"{SAMPLED} a", f"{SAMPLED} b"]
    assert not [*sampled(batch, rows_of(3, 2), {})]
    made = {"a": {6: [Made(12, {})], 7: [Made(3, {})]}, "b": {6: [Made(22, {})], 7: [Made(23, {})]}}
    after = extend(torch.empty(0), [1, 2])  # Tokens that were not accepted are not judged.
    assert wrong(sampled(after, rows_of(DRAFTED, DRAFTED), made)) == []
    made["b"][7] = [Made(24, {})]
    assert wrong(sampled(after, rows_of(DRAFTED, DRAFTED), made)) == [f"{SAMPLED} b"]


@pytest.mark.parametrize(
    ("kind", "ready", "found"),
    [
        ("target_verify", {"forward_metadata_ready": True}, [(None, False)]),
        ("decode", {"forward_metadata_ready": True}, [(None, True)]),
        ("target_verify", {}, []),  # What it needs was prepared for the graph alone.
        ("extend", {"forward_metadata_ready": True}, []),
    ],
)
def test_drafts_are_verified_without_their_graph_too(
    kind: str, ready: dict[str, bool], found: list[Any]
) -> None:
    """Their metadata are then prepared again."""
    runner = Part(attn_backend=Part(), token_to_kv_pool=None, decode_cuda_graph_runner="graphs")
    batch, seen = Part(**ready), list[Any]()

    def call() -> Any:
        seen.append((runner.decode_cuda_graph_runner, maybe(batch, "forward_metadata_ready")))
        return Part(logits_output={"next_token_logits": torch.ones(2)})

    forward = Forward(kind, ())
    now = Part(model=Part(runner=runner), forward=forward, call=call, batch=batch)
    watching = Part(hidden=contextlib.nullcontext, requests=[], eager=None)
    if (run := eager(watching, now)) is not None:
        assert [*run()] == ["next_token_logits"]
    assert seen == found
    assert runner.decode_cuda_graph_runner == "graphs"
    assert maybe(batch, "forward_metadata_ready") == (True if ready else None)
