"""The block of failures at the end of a red run: what, where, why, how to replay it."""

from dataclasses import replace

import pytest
from paritybit.harness.cli.display import print_errors
from paritybit.harness.cli.failures import annotation
from paritybit.harness.errors import CannotRunError
from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.reports.causes import groups

from properties.support.reports.pages import printed_failures
from properties.support.reports.records import bug, green, red, swa_pad_finding

REPLAY = "replay: paritybit replay paritybit-out/20251122T091500Z/cases/swa_pad-decode.json"


def test_what_every_process_was_lacking_is_no_error_of_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As on a node of a cluster with too little memory; beside another error that is said."""
    lacking = traceback_of(CannotRunError("it needs much, and little is free here"))
    broken = traceback_of(LookupError("nothing of that name"))
    print_errors([lacking, lacking])
    assert capsys.readouterr().err == "paritybit: it needs much, and little is free here\n"
    print_errors([lacking, broken])
    assert "internal error" in capsys.readouterr().err


def test_findings_of_one_cause_are_told_once_and_named() -> None:
    hunts = tuple(
        bug("swa_pad", "fails without the bug too", runner, finding=swa_pad_finding())
        for runner in ("target_verify", "decode", "piecewise")
    )
    record = replace(green(), bugs=hunts)
    (group,) = groups(record)
    assert len(group.failures) == 3
    text = printed_failures(record)
    assert "3 unexpected results with 1 cause\n" in text
    assert text.count(REPLAY) == 1  # The last lines have it once more, without the colon.
    assert all(f"swa_pad@{runner}" in text for runner in ("target_verify", "decode", "piecewise"))


def test_of_one_cause_the_finding_with_the_shortest_schedule_is_told() -> None:
    short = swa_pad_finding()
    twice = replace(short.schedule, steps=short.schedule.steps * 2)
    long = replace(short, schedule=twice, reproduce="paritybit replay long.json")
    hunts = tuple(bug("swa_pad", "fails without the bug too", finding=one) for one in (long, short))
    (group,) = groups(replace(green(), bugs=hunts))
    assert group.first.row.finding == short
    assert group.replay == short.reproduce


def test_a_run_without_failures_has_no_block() -> None:
    assert printed_failures(green()) == ""


def test_on_github_each_cause_is_an_annotation_of_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    record = red()
    lines = [line for line in printed_failures(record).splitlines() if line.startswith("::")]
    assert len(lines) == len(groups(record))
    place = "file=subjects/runners/decode.py,line=36"
    title = "title=red%3A decode%3A static inputs out_cache_loc_swa"
    assert lines[0].startswith(f"::error {place},{title}::what: clean@decode (gemma3, preset,")
    assert f"%0A{REPLAY}" in lines[0]
    assert lines[1].startswith("::error title=vacuous%3A nothing was found::what: ")


def test_an_annotation_is_one_line_whatever_the_record_holds() -> None:
    """No text of a record ends an annotation, its place or its title, or begins another."""
    (group, *_) = groups(red())
    odd = "50%, a:b\r\n::error file=x::y"
    line = annotation(replace(group, status=odd, replay=odd, lines=(SourceLine("", odd, 3),)))
    assert "\n" not in line
    assert "\r" not in line
    place, _, text = line.removeprefix("::error ").partition("::")
    escaped = "50%25%2C a%3Ab%0D%0A%3A%3Aerror file=x%3A%3Ay"
    assert place.startswith(f"file={escaped},line=3,title={escaped}%3A ")
    assert text.endswith("replay: 50%25, a:b%0D%0A::error file=x::y")
