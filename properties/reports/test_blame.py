"""Tests of who is to blame, and where: said in the same words on terminal, page and summary."""

from dataclasses import replace
from typing import Any

import pytest
from paritybit.harness.explain.facts import (
    Outcome,
    Situation,
    SourceLine,
    Suspect,
    SuspectName,
    Writer,
    WrongElement,
)
from paritybit.harness.records.schema import Environment, HuntStatus, Record
from paritybit.reports.blame import culprit, failing_runner, linked_line, to_blame
from paritybit.reports.causes import groups, run_answers
from paritybit.reports.page import render
from paritybit.reports.review import review
from paritybit.reports.summary import summarise

from properties.support.reports.pages import folded, printed_failures, text_of
from properties.support.reports.records import (
    explanation,
    green,
    red,
    swa_pad_finding,
    traceback_of,
    with_clean,
)

ELSEWHERE = "eagle_draft_extend, in a trial of decode"


def fails_elsewhere() -> Record:
    """Return a red record whose clean trial of decode fails in eagle_draft_extend."""
    at = Situation(step=3, runner="eagle_draft_extend", bucket=2, live_size=1)
    found = replace(swa_pad_finding(), explanation=explanation(at=at))
    return with_clean(replace(green(), verdict="red"), 4, status="red", finding=found)


def test_a_trial_that_fails_in_another_runners_forward_says_so_everywhere() -> None:
    record = fails_elsewhere()
    (group,) = groups(record)
    assert group.cause == "eagle_draft_extend: static inputs out_cache_loc_swa"
    assert ELSEWHERE in folded(printed_failures(record))
    assert f"runner {ELSEWHERE}" in text_of(record)
    markdown = summarise(record).replace("\\", "")
    assert ELSEWHERE in markdown
    assert group.cause in markdown
    shown = review(record)
    (fails_in,) = [one for one in shown.filters if one.name == "fails-in"]
    assert fails_in.values == ("eagle_draft_extend", "decode", "piecewise")
    assert "kv_parity, step 3 in eagle_draft_extend" in text_of(record)
    assert 'data-runner="decode" data-fails-in="eagle_draft_extend"' in render(record)


def test_a_race_is_the_hosts() -> None:
    suspects = (Suspect("overlapping steps", "holds"),)
    race = explanation(at=Situation(3, None), suspects=suspects)
    assert failing_runner(race, (), 3) == "the host, which runs ahead"


BY = Writer(2, "decode", 1, None)

BLAMED: dict[str, tuple[SuspectName, tuple[WrongElement, ...]]] = {
    "inputs, in decode: slots[1] = 9, left there by step 2, decode, row 1": (
        "static inputs",
        (WrongElement("slots", (1,), "9", "0", BY, "copied", stale=True),),
    ),
    "inputs, in decode: slots[1] = 9, written in step 2, reset as padding; expected: 0": (
        "static inputs",
        (WrongElement("slots", (1,), "9", "0", BY, "reset"),),
    ),
    "inputs, in decode: slots[1] = 9, not written in step 2: it is the harness's poison": (
        "static inputs",
        (WrongElement("slots", (1,), "9", "0", BY, "equalized"),),
    ),
    "tables, in decode: req_to_token[2, 5] = 9; expected: 4, and 1 more element": (
        "index tables",
        (WrongElement("req_to_token", (2, 5), "9", "4"),) * 2,
    ),
    "output, in decode: topk_p[0, 0] = nan, a view of an output of step 2": (
        "kept output",
        (WrongElement("topk_p", (0, 0), "nan", "0.5", BY, None, stale=True),),
    ),
    "capture, in decode: kv_parity holds without it": ("capture", ()),
}
"""How a cause is described."""


@pytest.mark.parametrize("words", BLAMED)
def test_a_cause_is_named_with_its_elements_and_who_wrote_them(words: str) -> None:
    name, elements = BLAMED[words]
    found = explanation(suspects=(Suspect(name, "holds", elements),))
    assert words in to_blame(found, "decode")
    assert culprit(found).startswith(name)


@pytest.mark.parametrize("outcome", ["violated", "fails", "nothing to reset"])
def test_without_a_cause_the_first_difference_is_named(outcome: Outcome) -> None:
    found = explanation(suspects=(Suspect("capture", outcome),))
    assert to_blame(found, "decode") == (
        "not known, in decode: the first difference is in store_kv, row 1, element 0"
    )
    assert culprit(found) == "kv_parity, first seen in store_kv"
    bare = replace(found, difference=None)
    assert to_blame(bare, "decode") == "not known, in decode: kv_parity does not hold"
    assert culprit(bare) == "kv_parity in subjects/runners/decode.py"


@pytest.mark.parametrize("status", ["missed", "failed", "vacuous"])
def test_a_hunt_without_a_finding_answers_what_it_can(status: HuntStatus) -> None:
    error = traceback_of("RuntimeError: gone") if status == "failed" else None
    record = replace(red(), clean=(), bugs=(replace(red().bugs[5], status=status, error=error),))
    (group,) = groups(record)
    answers = {answer.name: answer.text for answer in run_answers(record, group)}
    assert answers["what"].endswith(f"{status}; index_contract must detect it")
    why = "RuntimeError: gone" if error else "no violation in 50 schedules and 57 replays"
    assert answers["why"] == why
    assert answers["source"] == "not known"
    assert answers["replay"] == f"no case was saved; run again: {record.command}"


def environment(**changes: Any) -> Environment:
    """Return the environment of a run."""
    return replace(green().environment, **changes)


LINE = SourceLine("the contract row of positions", "subjects/runners/decode.py", 31)


def test_a_line_leads_to_the_commit_where_it_and_its_repository_are_known() -> None:
    known = environment(commit="abc1234", repository="https://github.com/o/p")
    assert linked_line(LINE, known).text == "subjects/runners/decode.py:31"
    href = "https://github.com/o/p/blob/abc1234/subjects/runners/decode.py#L31"
    assert linked_line(LINE, known).href == href
    record = replace(fails_elsewhere(), environment=known)
    assert 'decode.py#L36" rel="noreferrer">subjects/runners/decode.py:36</a>' in render(record)
