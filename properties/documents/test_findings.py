"""The scoreboard claims of a thread only what a record of a run says."""

import json
from collections import Counter

import pytest

from properties.documents.findings import (
    EVIDENCE,
    FOUND,
    INEXPRESSIBLE,
    MISSED,
    RECORDS,
    UNTRIED,
    scores,
    tried,
)


def test_each_thread_has_one_score_with_a_reason() -> None:
    scored = list(scores())
    assert max(Counter(score.thread for score in scored).values()) == 1
    assert {score.result for score in scored} == {FOUND, MISSED, INEXPRESSIBLE, UNTRIED}
    assert all(score.why for score in scored)


@pytest.mark.parametrize(
    ("thread", "result", "name"),
    [
        ("sgl#34870", FOUND, "its fix undone in a release: frontier-counts-tokens-not-the-key"),
        ("sgl#17061", MISSED, "its fix undone in a release: tombstone-keeps-a-long-count"),
        ("vllm#42276", MISSED, "a fault that resembles it, planted: freed-blocks-stay"),
        ("vllm#51430", FOUND, "a fault that resembles it, planted: every-batch-replays"),
    ],
)
def test_a_fix_that_was_undone_counts_before_faults_that_resemble_it(
    thread: str, result: str, name: str
) -> None:
    found = tried(thread)
    assert found is not None
    assert found[0] == result
    assert found[1].startswith(name)
    assert tried("sgl#1") is None


def test_what_is_found_is_found_in_a_record() -> None:
    records = ("public-fixes", *(name.removesuffix(".json") for name in RECORDS.values()))
    outcomes = [json.loads((EVIDENCE / f"{name}.json").read_text()) for name in records]
    names = {one["name"] for runs in outcomes for one in runs if one["status"] == FOUND}
    for score in scores():
        if score.result == FOUND:
            named = score.why.partition(": ")[2].partition(";")[0].split(", ")
            assert set(named) <= names, score.thread
