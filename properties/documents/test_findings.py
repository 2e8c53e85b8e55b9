"""The scoreboard claims of a thread only what a record of a run says."""

from collections import Counter

import pytest

from paritybit.compat import tomllib
from properties.documents.findings import (
    FIELD,
    FOUND,
    INEXPRESSIBLE,
    MISSED,
    UNTRIED,
    planted,
    scores,
    tried,
    undone,
)
from properties.planting.faults import TABLES, read


def test_each_thread_has_one_score_with_a_reason() -> None:
    scored = list(scores())
    assert max(Counter(score.thread for score in scored).values()) == 1
    assert {score.result for score in scored} == {FOUND, MISSED, INEXPRESSIBLE, UNTRIED}
    assert all(score.why for score in scored)


@pytest.mark.parametrize(
    ("thread", "result", "why"),
    [
        ("sgl#34870", FOUND, "its fix undone in a release: frontier-counts-tokens-not-the-key"),
        ("sgl#17061", MISSED, "its fix undone in a release: tombstone-keeps-a-long-count. Not"),
        ("vLLM#42273", MISSED, "freed-blocks-stay-in-the-table, planted, resembles it: blocks"),
        ("sgl#32087", FOUND, "window-one-key-short, planted, resembles it: the lists"),
        ("sgl#32564", INEXPRESSIBLE, "no setting has a transfer of KV between two engines"),
    ],
)
def test_a_score_states_how_it_is_known(thread: str, result: str, why: str) -> None:
    (score,) = [score for score in scores() if score.thread == thread]
    assert score.result == result
    assert score.why.startswith(why)


def test_a_fix_that_was_undone_counts_before_a_fault_that_resembles_the_thread() -> None:
    entry = {"resembles": {"sgl#17061": {"fault": "window-one-key-short", "how": "it does not"}}}
    found = tried(entry, "sgl#17061")
    assert found is not None and found[0] == MISSED
    assert tried(entry, "sgl#1") is None


def test_a_fault_counts_for_a_thread_only_with_the_mechanism_that_they_share() -> None:
    """A table of faults names no thread of the field that the field does not compare it with."""
    field = tomllib.loads(FIELD.read_text(encoding="utf-8"))["class"]
    listed = {thread.lower(): thread for entry in field for thread in entry["threads"]}
    like = {thread: one for entry in field for thread, one in entry.get("resembles", {}).items()}
    assert like.keys() <= set(listed.values())
    assert all(one["how"] and one["fault"] in planted() for one in like.values())
    for table in TABLES:
        for fault in read(table):
            thread = listed.get((fault.thread or "").lower())
            if thread is not None and thread not in undone():
                assert like[thread]["fault"] == fault.name
