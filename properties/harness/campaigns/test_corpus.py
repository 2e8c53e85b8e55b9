"""The regression corpus: the minimal case of every bug on every runner that it affects.

Each committed case shows its bug as it did when it was found, and nothing without the bug.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.harness.campaigns.hunt import HuntResult
from paritybit.harness.campaigns.task import Result, Status, Task, run_task
from paritybit.harness.checks.expectations import affected_runners, detected_by
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.errors import headline
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case, load_case
from paritybit.subjects.bugs.catalogue import BUGS, FIRST

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, FINDING, MALFORMED, OK
from properties.support.harness.scripted import ERROR
from properties.support.harness.shrunk_sizes import most_steps
from properties.support.places import CORPUS

CASES = {path.stem: load_case(path) for path in sorted(CORPUS.glob("*.json"))}
CLEAN = sorted({case.trial.clean for case in CASES.values()}, key=str)
"""The clean trials of all cases: those of a trial share the clean build that they are held to."""


def test_the_corpus_has_a_case_of_every_first_bug_on_every_runner_it_affects() -> None:
    pairs = [f"{name}@{runner}" for name in FIRST for runner in affected_runners(BUGS[name])]
    assert sorted(CASES) == sorted(pairs)
    for name, case in CASES.items():
        assert name == f"{case.trial.bug}@{case.trial.runner}"
        assert case.trial.bug is not None
        assert case.target == detected_by(BUGS[case.trial.bug], case.trial.runner)
        assert (case.trial.device, case.seed) == ("cpu", 0)
        assert len(case.schedule.steps) <= most_steps(case.trial.bug)


def trial_name(trial: TrialConfig) -> str:
    """Return a clean trial in a test id."""
    return f"{trial.runner}-{trial.scheme}"


@pytest.mark.usefixtures("captures_when_needed")
@pytest.mark.parametrize("clean", CLEAN, ids=trial_name)
def test_a_case_shows_its_bug_and_nothing_without_it(clean: TrialConfig, device: str) -> None:
    """With every property on, on this session's device. Single sites on the cheapest runner."""
    right = Lockstep(replace(clean, device=device), PROPERTIES)
    cases = {
        name: case
        for name, case in CASES.items()
        if case.trial.clean == clean and ("." not in name or clean.runner == "cpu_graph")
    }
    assert cases
    for name, case in cases.items():
        broken = Lockstep(replace(case.trial, device=device), PROPERTIES)
        outcome = broken.play(case.schedule)
        assert case.target in outcome.violated, name
        if device == case.trial.device:
            seen = [(violation.property, violation.step) for violation in outcome.violations]
            assert seen == recorded(case), name
        outcome = right.play(case.schedule)
        assert outcome.violations == (), name
        assert outcome.steps > 0, name


def recorded(case: Case) -> list[tuple[str, int]]:
    """Return what a case violated when it was found, and when."""
    return [(violation["property"], violation["step"]) for violation in case.violations]


def run_here(tasks: Sequence[Task], _: int, on_result: Callable[[Result], None]) -> None:
    """Run tasks in this process: another takes seconds to start."""
    for task in tasks:
        on_result(run_task(task))


def test_the_corpus_is_made_again_for_the_bugs_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paritybit.harness.campaigns.corpus.run_tasks", run_here)
    words = ["corpus", "--bug", "loc_memo_warning@cpu_graph,loc_memo_capture@cpu_graph"]
    assert main([*words, "--workers", "1", "--out", str(tmp_path / "new")]) == OK
    assert "wrote 1 cases to " in capsys.readouterr().out
    (made,) = (tmp_path / "new").iterdir()
    assert made.name == "loc_memo_warning@cpu_graph.json"
    made_again, committed = load_case(made), CASES["loc_memo_warning@cpu_graph"]
    assert (made_again.trial, made_again.target) == (committed.trial, committed.target)


def test_a_corpus_of_bugs_that_affect_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["corpus", "--bug", "loc_memo_capture@cpu_graph", "--out", str(tmp_path)]
    assert main(words) == MALFORMED
    assert "the bugs loc_memo_capture@cpu_graph cannot affect" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_bug_that_is_not_caught_is_no_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is one whose hunt an error of ours ended: that alone is no verdict."""
    ends = iter([Status.FAILED, Status.MISSED])

    def end_badly(tasks: Sequence[Task], _: int, on_result: Callable[[Result], None]) -> None:
        for task, status in zip(tasks, ends, strict=False):
            error = ERROR if status is Status.FAILED else None
            on_result(Result(task, status, HuntResult(), None, 0, 0.0, error))

    monkeypatch.setattr("paritybit.harness.campaigns.corpus.run_tasks", end_badly)
    for code, error in ((CANNOT_RUN, ERROR), (FINDING, "")):
        assert main(["corpus", "--bug", "swa_pad@decode", "--out", str(tmp_path)]) == code
        captured = capsys.readouterr()
        assert "wrote 0 cases to " in captured.out
        assert "not detected: swa_pad@decode" in captured.out
        assert (f"internal error: {headline(ERROR)}" in captured.err) is bool(error)
        assert bool(captured.err) is bool(error)
    assert list(tmp_path.iterdir()) == []
