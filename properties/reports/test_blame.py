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
from paritybit.harness.records.schema import Environment, Finding, HuntStatus, Record
from paritybit.reports.blame import (
    culprits,
    failing_runner,
    linked_line,
    reasons,
    runner_words,
    to_blame,
)
from paritybit.reports.causes import groups, run_answers
from paritybit.reports.compared.runs import compare_runs
from paritybit.reports.page import render
from paritybit.reports.review import review
from paritybit.reports.summary import summarise

from properties.support.reports.pages import folded, printed_failures, text_of
from properties.support.reports.records import (
    cause,
    explanation,
    finding,
    finding_of,
    green,
    kv_violation,
    played,
    red,
    swa_pad_finding,
    traceback_of,
    trial,
    with_bug,
    with_clean,
)

ELSEWHERE = "eagle_draft_extend, in a trial of decode"


def fails_elsewhere() -> Record:
    """Return a red record whose clean trial of decode fails in eagle_draft_extend."""
    at = Situation(step=3, runner="eagle_draft_extend", bucket=2, live_size=1)
    found = replace(swa_pad_finding(), explanation=explanation(at=at))
    return with_clean(replace(green(), verdict="red"), 4, status="red", finding=found)


CUDA_ERROR = """\
torch.AcceleratorError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."""
"""What was raised, whose message has several lines."""


def test_an_error_of_several_lines_is_told_by_the_one_that_says_what_was_raised() -> None:
    """On the terminal, in the summary, and where two runs are compared."""
    raised, error = CUDA_ERROR.splitlines()[0], traceback_of(CUDA_ERROR)
    record = replace(green(), verdict="red")
    record = with_bug(record, 0, status="failed", error=error, finding=None)
    (group,) = groups(record)
    assert group.cause == raised
    (change,) = [one for one in compare_runs(green(), record).changes if one.kind == "undecided"]
    assert change.after == f"failed: {raised}"
    for text in (folded(printed_failures(record)), summarise(record)):
        assert "TORCH_USE_CUDA_DSA" not in text


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


def test_without_an_explanation_the_step_says_which_runner_fails() -> None:
    entries = [
        played(0, "admit", [0], mode="extend"),
        played(1, "draft_extend", [0], runner="eagle_draft_extend", bucket=2),
    ]
    found = finding([kv_violation(1)], entries)
    assert runner_words(found, "decode") == ELSEWHERE
    assert runner_words(found, "eagle_draft_extend") == "eagle_draft_extend"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (played(3, "finish", [], mode=None), "no forward (finish)"),
        (played(3, "admit", [0], mode="extend"), "an eager forward"),
        (played(3, "draft", [0], runner="eagle_draft", bucket=2), "eagle_draft"),
        (played(7, "decode", [0]), "not known"),
    ],
)
def test_a_step_without_a_replay_is_no_runners(entry: Any, words: str) -> None:
    assert failing_runner(explanation(at=Situation(3, None)), [entry], 3) == words


def test_a_race_is_the_hosts() -> None:
    race = explanation(at=Situation(3, None), cause=cause(blame="missing wait"))
    assert failing_runner(race, (), 3) == "the host, which runs ahead"


PARTS: dict[str, tuple[Any, str, str]] = {
    "index": (
        IndexOrigin("slots", 1, 9, None, True, 1, None, 9, None, Writer(2, "d", 1, None), "reset"),
        "static input slots",
        "slots[1] = 9, left there by step 2, d, row 1 (padding); expected: not known",
    ),
    "cell": (
        TableCell("req_to_token", (2, 5), 9, 4, since=1),
        "table req_to_token",
        "req_to_token[2, 5] = 9 since step 1; expected 4",
    ),
    "kept": (
        KeptOutput("topk_p of row 0", "nan", "topk_p", 1, 4, "eagle_draft"),
        "static output topk_p, kept as topk_p of row 0",
        "topk_p of row 0 is a view of topk_p, row 1, of step 4",
    ),
    "given": (
        GivenValue("positions[1]", "3", None, False, Writer(2, "d", 1, 1), "equalized"),
        "positions",
        (
            "positions[1] = 3, not written in step 2: it is the harness's poison value;"
            " expected: not known"
        ),
    ),
    "listed": (
        ListFault("swa", 1, "request 0", "is one short"),
        "inputs, first seen in store_kv",
        "the swa keys of row 1: the list is one short",
    ),
    "baked": (
        BakedIn("rotary", 4, "the stride of positions", "[0, 1]", "[4, 1]"),
        "the stride of positions, baked in at the capture",
        (
            "the graph has had [0, 1] for the stride of positions of rotary since its "
            "capture; expected [4, 1]"
        ),
    ),
    "held": (
        Holding("full page 5", "free once", "free 2 times", 2, "finish", "graph", True),
        "full page 5",
        "full page 5 is free 2 times since step 2",
    ),
    "taken": (
        SlotTaken("draft", "full", 0, None, 45, 50),
        "inputs, first seen in store_kv",
        "row 0 uses slot 45; expected 50",
    ),
}
"""Of each part of a cause: one, what it names, and why that is wrong."""


@pytest.mark.parametrize("part", PARTS)
def test_what_is_to_blame_is_named_with_its_element_and_its_step(part: str) -> None:
    """The blame, which is one word, never stands alone, and what is not known says so."""
    value, name, why = PARTS[part]
    found = cause(**{"index": None, part: value})
    assert next(culprits(found)) == name
    assert next(reasons(found)) == why
    assert "None" not in why


def test_a_site_goes_before_the_element_that_shows_it() -> None:
    """A location of the wrong width holds the right number."""
    site = CodeSite("store_kv", "reference/ops.py", "it reads int32")
    assert next(reasons(cause(site=site))) == "store_kv: it reads int32"


def test_a_blame_of_which_no_element_is_known_says_so() -> None:
    nothing = cause(blame="undeclared state", index=None, difference=None, slot=None)
    words = "undeclared state, in decode: the element is not known"
    assert to_blame(explanation(cause=nothing), "decode") == words


def test_a_cause_of_which_nothing_is_known_names_where_it_was_first_seen() -> None:
    found = cause(blame="not known", index=None)
    assert next(culprits(found)) == "not known, first seen in store_kv"
    assert next(reasons(found)) == "the first difference is in store_kv, row 1, element 0"


ANSWERS = {
    "what": "clean@decode (gemma3, preset, generated): step 3 violates kv_parity:",
    "runner": ELSEWHERE,
    "why": "out_cache_loc_swa[1] = 9, left there by step 2, decode, row 1 (request 1); expected: 0",
    "source": "subjects/runners/decode.py:36, subjects/runners/base.py:187",
    "replay": swa_pad_finding().reproduce,
    "tried": "8 of 9 clean trials passed, 5 of 5 hunts as expected; 377 schedules,",
}
"""What failed, on which runner, why, where in the source, how to replay it, what else was tried."""


def test_six_questions_are_answered_by_one_place_for_terminal_and_page() -> None:
    record = fails_elsewhere()
    (group,) = groups(record)
    answers = {answer.name: answer.text for answer in run_answers(record, group)}
    assert list(answers) == list(ANSWERS)
    for name, text in ANSWERS.items():
        assert text in answers[name]


@pytest.mark.parametrize("width", [80, 120])
def test_the_last_lines_of_the_terminal_answer_what_a_reader_of_a_red_run_asks(width: int) -> None:
    """They are 15, the last three of which are the verdict and the page's address."""
    lines = printed_failures(fails_elsewhere(), width).splitlines()[-12:]
    text = folded(" ".join(lines))
    for name, answer in ANSWERS.items():
        assert f"{name} " in text
        assert answer in text
    assert all(len(line) <= width for line in lines if "replay" not in line)


def test_the_first_screen_of_the_page_answers_them_as_well() -> None:
    text = text_of(fails_elsewhere())
    screen = text[: text.index("clean trials passed 8 of 9")]
    for name in ("what", "runner", "why", "source", "replay"):
        assert f"{name} " in screen
        assert ANSWERS[name] in screen
    assert "Tested: 377 schedules" in screen


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


@pytest.mark.parametrize(
    "changes",
    [
        {"repository": None},
        {"commit": None},
        {"commit": "main"},
        {"repository": "javascript://github.com/o/p"},
        {"repository": 'https://github.com/o/p"><script>'},
        {"repository": "https://user@github.com/o/p"},
    ],
)
def test_a_line_is_plain_text_where_the_commit_or_the_repository_is_not_known(
    changes: dict[str, Any],
) -> None:
    known = environment(commit="abc1234", repository="https://github.com/o/p")
    piece = linked_line(LINE, replace(known, **changes))
    assert piece.href == ""
    assert piece.text == "subjects/runners/decode.py:31"


def test_a_finding_that_violates_nothing_again_is_its_trials() -> None:
    empty: Finding = replace(finding_of(green(), 0), violations=())
    assert runner_words(empty, trial().runner) == "decode"
