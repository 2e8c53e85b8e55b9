"""Drafts that are proposed and accepted, against their definitions in plain Python."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paritybit.reference.config import DRAFT_FORWARDS
from paritybit.reference.model import Output
from paritybit.reference.ops import Ops
from paritybit.reference.speculative import count_accepted, propose
from torch import Tensor

TOKENS = st.lists(st.integers(0, 1), min_size=5, max_size=5)


def test_each_draft_is_the_likeliest_token_after_the_one_before() -> None:
    table = torch.randn(DRAFT_FORWARDS, 7, 7, generator=torch.Generator().manual_seed(0))

    def forward(step: int, ids: Tensor, hidden: Tensor) -> Output:
        return {"logits": table[step, ids] * hidden, "hidden": hidden + ids[:, None]}

    start = torch.tensor([[0.5], [0.25]]), torch.tensor([[3], [5]]), torch.tensor([[1.0], [2.0]])
    found = propose(Ops(), *start, forward)
    for row in range(2):
        score, first, state = (float(one[row]) for one in start)
        tokens = [int(first)]
        for step in range(DRAFT_FORWARDS):
            likely = (table[step, tokens[-1]] * state).softmax(0)
            state += tokens[-1]
            tokens.append(int(likely.argmax()))
            score *= float(likely.max())
            assert float(found["scores"][row, step + 1]) == pytest.approx(score)
        assert found["tokens"][row].tolist() == tokens


@given(drafts=TOKENS, greedy=TOKENS, at_least=st.integers(0, 9))
def test_drafts_are_accepted_up_to_the_first_wrong_one(
    drafts: list[int], greedy: list[int], at_least: int
) -> None:
    count = count_accepted(drafts, greedy, at_least)
    assert count >= min(at_least, 5)
    assert drafts[at_least:count] == greedy[at_least:count]
    assert count == 5 or drafts[count] != greedy[count]
