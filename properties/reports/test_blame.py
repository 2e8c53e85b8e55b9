"""Tests of who is to blame, and where: said in the same words on terminal, page and summary."""

from dataclasses import replace
from typing import Any

import pytest
from paritybit.harness.explain.facts import (
    BakedIn,
    CodeSite,
    GivenValue,
    Holding,
    IndexOrigin,
    KeptOutput,
    ListFault,
    Situation,
    SlotTaken,
    SourceLine,
    TableCell,
    Writer,
)
from paritybit.harness.records.schema import Environment, HuntStatus, Record
from paritybit.reports.blame import (
    culprits,
    failing_runner,
    linked_line,
    reasons,
)
from paritybit.reports.causes import groups, run_answers
from paritybit.reports.page import render
from paritybit.reports.review import review
from paritybit.reports.summary import summarise

from properties.support.reports.pages import folded, printed_failures, text_of
from properties.support.reports.records import (
    cause,
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
    assert group.cause == "eagle_draft_extend: static input out_cache_loc_swa"
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
    race = explanation(at=Situation(3, None), cause=cause(blame="missing wait"))
    assert failing_runner(race, (), 3) == "the host, which runs ahead"


PARTS: dict[str, Any] = {
    "index": IndexOrigin(
        "slots", 1, 9, None, True, 1, None, 9, None, Writer(2, "d", 1, None), "reset"
    ),
    "cell": TableCell("req_to_token", (2, 5), 9, 4, since=1),
    "kept": KeptOutput("topk_p of row 0", "nan", "topk_p", 1, 4, "eagle_draft"),
    "given": GivenValue("positions[1]", "3", None, False, Writer(2, "d", 1, 1), "equalized"),
    "listed": ListFault("swa", 1, "request 0", "is one short"),
    "baked": BakedIn("rotary", 4, "the stride of positions", "[0, 1]", "[4, 1]"),
    "held": Holding("full page 5", "free once", "free 2 times", 2, "finish", "graph", True),
    "taken": SlotTaken("draft", "full", 0, None, 45, 50),
}
"""Of each part of a cause: one."""

NUMBERS = {"index": "9", "cell": "4", "given": "3", "baked": "[4, 1]", "held": "2", "taken": "50"}
"""Of some parts, what the reason must say."""


@pytest.mark.parametrize("part", PARTS)
def test_what_is_to_blame_is_named_with_its_element_and_its_step(part: str) -> None:
    """The blame, which is one word, never stands alone, and what is not known says so."""
    found = cause(**{"index": None, part: PARTS[part]})
    name, why = next(culprits(found)), next(reasons(found))
    assert name and NUMBERS.get(part, "") in why
    assert "None" not in name + why


def test_a_site_goes_before_the_element_that_shows_it() -> None:
    """A location of the wrong width holds the right number."""
    site = CodeSite("store_kv", "reference/ops.py", "it reads int32")
    assert next(reasons(cause(site=site))) == "store_kv: it reads int32"


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
