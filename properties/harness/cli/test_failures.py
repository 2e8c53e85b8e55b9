"""The block of failures at the end of a red run: what, where, why, how to replay it."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from harness.cli.display import clean_table, matrix
from harness.cli.failures import print_failures
from harness.records.schema import Record
from properties.support.reports.records import bug, green, red, swa_pad_finding
from reports.causes import groups

REPLAY = "replay: paritybit replay reports/out/20251122T091500Z/cases/swa_pad-decode.json"


def printed(record: Record, width: int = 80) -> str:
    """Return what a console without a terminal gets of a record's failures."""
    stream = StringIO()
    print_failures(Console(file=stream, width=width), record)
    return stream.getvalue()


def test_a_red_trial_says_what_where_why_and_how_to_replay_it() -> None:
    text = printed(red())
    words = " ".join(text.split())
    assert "red: decode: static input out_cache_loc_swa" in words
    assert "step 3 violates kv_parity: layer 0 (swa), K, slot 9 of request 1" in words
    assert "violated as well: write_frame, hermetic_replay" in words
    assert all(" ".join(sentence.split()) in words for sentence in sentences())
    assert "to blame: inputs, in decode" in words
    assert REPLAY in text


def sentences() -> tuple[str, ...]:
    """Return the sentences that explain the finding of the red record."""
    explanation = swa_pad_finding().explanation
    assert explanation is not None
    return explanation.proof


def test_a_missed_bug_names_the_property_that_must_see_it() -> None:
    text = printed(red())
    assert "swa_int64@decode" in text
    assert "must be seen by index_contract" in text


def test_findings_of_one_cause_are_told_once_and_named() -> None:
    hunts = tuple(
        bug("swa_pad", "clean is red too", runner, finding=swa_pad_finding())
        for runner in ("target_verify", "decode", "piecewise")
    )
    record = replace(green(), bugs=hunts)
    (group,) = groups(record)
    assert len(group.failures) == 3
    text = printed(record)
    assert "3 not as expected, of 1 cause\n" in text
    assert text.count(REPLAY) == 1
    assert all(f"swa_pad@{runner}" in text for runner in ("target_verify", "decode", "piecewise"))


def test_of_one_cause_the_finding_with_the_shortest_schedule_is_told() -> None:
    short = swa_pad_finding()
    twice = replace(short.schedule, steps=short.schedule.steps * 2)
    long = replace(short, schedule=twice, reproduce="paritybit replay long.json")
    hunts = tuple(bug("swa_pad", "clean is red too", finding=one) for one in (long, short))
    (group,) = groups(replace(green(), bugs=hunts))
    assert group.first.row.finding == short
    assert group.replay == short.reproduce


def test_a_run_without_failures_has_no_block() -> None:
    assert printed(green()) == ""


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_are_folded_between_words_and_a_command_stays_whole(width: int) -> None:
    lines = [line for line in printed(red(), width).splitlines() if line.startswith("   ")]
    assert f"   {REPLAY}" in lines
    assert all(line == line.rstrip() for line in lines)
    long = [line for line in lines if len(line) > width and "replay: " not in line]
    assert all(" " not in line.strip() for line in long)


def test_the_tables_lose_no_letter_on_80_columns() -> None:
    stream = StringIO()
    record = red()
    Console(file=stream, width=80).print(clean_table(record), matrix(record))
    assert "…" not in stream.getvalue()
    assert all(row.trial.preset in stream.getvalue() for row in record.clean)
