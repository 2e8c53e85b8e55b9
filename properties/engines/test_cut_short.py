"""What a leg of an engine has found is kept, though it is interrupted or its process dies."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns.executor import Ended
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.engines import record, trial
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.case import EngineCase
from paritybit.harness.engines.faults import FAULTS, Evidence, Finding, Verdict
from paritybit.harness.engines.fetch import FOLDER_VARIABLE
from paritybit.harness.engines.playlist import Kind
from paritybit.harness.engines.progress import Played, SoFar, listening, tell
from paritybit.harness.engines.trial import Answer, run_legs
from paritybit.harness.engines.worker import LegTask, _Session
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.machine.workers import ONE
from paritybit.harness.records.case import Case
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule

from paritybit.__main__ import main
from properties.support.harness.command_line import INTERRUPTED, LONGEST

SMALL = TrialConfig(buckets=(2,), token_buckets=(4,))
RIGHT = Schedule((Admit(1, 16), Decode((0,))))
STALE = Schedule((Admit(1, 16), Admit(1, 16), Decode((0, 1)), Decode((0,))))


def leg_task(folder: Path) -> LegTask:
    """Return a leg of the decode runner that tells of itself in a folder."""
    log, told = str(folder / "engine.log"), str(folder / "engine.progress")
    return LegTask("", "", "cpu", "decode", "gpt_oss", Kind.REPLAYED, 0, 4, log, told)


def played(folder: Path, trial_config: TrialConfig, *schedules: Schedule) -> None:
    """Play schedules on our own engine, which stands for another, as a leg that tells of itself."""
    session: Any = object.__new__(_Session)
    session.task, session.refused = leg_task(folder), None
    told = replace(FAULTS["swa_pad"], shows=lambda _: True)
    session.evidence = Evidence("decode", {"swa_pad": told})
    leg = session._leg(Lockstep(trial_config))
    for schedule in schedules:
        leg.play(schedule)


def test_a_leg_tells_what_it_has_found_once_with_a_case_as_it_was_drawn(tmp_path: Path) -> None:
    told = list[Played]()
    with listening(tmp_path / "engine.progress", told.append):
        played(tmp_path, SMALL.with_bug("swa_pad"), RIGHT, STALE, STALE)
    right, first, again = told
    assert right.found == SoFar([], [], [])
    assert again.found is None
    assert again.violated == first.violated
    assert first.found is not None
    assert {one["property"] for one in first.found.findings} == set(first.violated)
    assert [(one["fault"], one["verdict"]) for one in first.found.faults] == [
        ("swa_pad", Verdict.PRESENT)
    ]
    (case,) = [case for case in first.found.cases if case["target"] == "write_frame"]
    assert len(case["schedule"]) <= len(STALE.steps)


def test_a_line_that_is_read_while_it_is_written_is_heard_once_it_is_whole(tmp_path: Path) -> None:
    path, told = tmp_path / "progress", list[Played]()
    tell(path, Played("a", 1, 2, "schedules", 1, 9, 5, 3, ("kv_parity",)))
    line = path.read_text()
    path.write_text(line + line[:20])
    with listening(path, told.append):
        deadline = time.monotonic() + LONGEST
        while len(told) < 1:
            assert time.monotonic() < deadline
        with path.open("a") as rest:
            rest.write(line[20:])
    assert [one.leg for one in told] == ["a", "a"]


FOUND = Finding("decode", "gpt_oss", "write_frame", "step 6: slot 7", ("swa_pad",))
CASE = Case(SMALL, STALE, "write_frame", 0, ())
PRESENT = {
    "fault": "swa_pad",
    "runner": "decode",
    "verdict": "present",
    "observations": 3,
    "message": "step 6: slot 7",
}


def lost(folder: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[..., None]) -> trial.Ran:
    """Return what is left of a leg that told what it had found, and then was lost somehow."""
    task = leg_task(folder)

    def telling(
        campaign: object, tasks: Sequence[LegTask], workers: object, on_end: Callable[..., None]
    ) -> None:
        cases = [json.loads(json.dumps(CASE.to_json()))]
        shown = SoFar([FOUND.to_json()], [PRESENT], cases)
        for turn, found in ((1, shown), (2, None)):
            names = ("write_frame",)
            path = Path(task.progress)
            tell(path, Played(task.label, turn, 5, "schedules", turn, 9, 5, 3, names, found))
        ends(on_end, task)

    monkeypatch.setattr(trial, "execute", telling)
    return run_legs([task], ONE, folder / "engine.log")


def interrupted(on_end: Callable[..., None], task: LegTask) -> None:
    """End a run as Ctrl-C does."""
    raise KeyboardInterrupt


def died(on_end: Callable[..., None], task: LegTask) -> None:
    """End a leg as one whose process died."""
    on_end(Ended(task, 1.0, error="the process died with exit code -11"))


@pytest.mark.parametrize(
    ("ends", "why"),
    [(interrupted, "the run was interrupted"), (died, "the process died with exit code -11")],
)
def test_what_a_lost_leg_had_found_is_kept_and_it_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[..., None], why: str
) -> None:
    answer = Answer()
    answer.take(lost(tmp_path, monkeypatch, ends), "cpu")
    assert answer.findings == [FOUND.to_json()]
    assert answer.faults == [PRESENT]
    assert answer.cases == [CASE]
    assert [one["reason"] for one in answer.undecided] == [why]
    assert answer.interrupted == (ends is interrupted)
    data = trial.to_json(answer)
    assert record.judge(data, ()) is Verdict.PRESENT
    assert why in record.sentence("it", data, ())


def test_a_leg_that_is_lost_before_it_told_anything_is_undecided_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "execute", lambda *words: died(words[3], leg_task(tmp_path)))
    ran = run_legs([leg_task(tmp_path)], ONE, tmp_path / "engine.log")
    (said,) = ran.said.values()
    assert (said.findings, said.undecided) == ([], "the process died with exit code -11")


def test_a_replay_that_is_interrupted_is_no_verdict_and_exits_as_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "kept" / DEPENDENCIES).mkdir(parents=True)
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(trial, "execute", interrupt)
    path = tmp_path / "case.json"
    EngineCase("it", CASE).write(path)
    assert main(["replay", str(path), "--engine", str(tmp_path)]) == INTERRUPTED
    assert capsys.readouterr() == ("", "paritybit: interrupted\n")
