"""Drafts that are accepted, against their definition in plain Python."""

from hypothesis import given
from hypothesis import strategies as st
from paritybit.reference.speculative import count_accepted

TOKENS = st.lists(st.integers(0, 1), min_size=5, max_size=5)


@given(drafts=TOKENS, greedy=TOKENS, at_least=st.integers(0, 9))
def test_drafts_are_accepted_up_to_the_first_wrong_one(
    drafts: list[int], greedy: list[int], at_least: int
) -> None:
    count = count_accepted(drafts, greedy, at_least)
    assert count >= min(at_least, 5)
    assert drafts[at_least:count] == greedy[at_least:count]
    assert count == 5 or drafts[count] != greedy[count]
