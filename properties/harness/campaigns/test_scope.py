"""What a run tried and did not: from its clean trials, and the same wherever it is shown."""

import html
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from paritybit.harness.campaigns.hunt import HuntResult
from paritybit.harness.campaigns.regress import Run, RunConfig, all_hunts, plan
from paritybit.harness.campaigns.scope import scope
from paritybit.harness.campaigns.task import Result, Task
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.codec import load
from paritybit.harness.records.schema import Record, Status
from paritybit.harness.schedules.coverage import CONTEXT, PROMPTS, ROWS, SLOT, of_one_branch
from paritybit.harness.schedules.schedule import Admit, Decode, Prefill, Schedule
from paritybit.reports.laboratory import report_of
from paritybit.reports.markdown import summary, text

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, OK

RUN = ["regress", "--bug", "loc_memo_warning@cpu_graph", "--device", "cpu", "--workers", "1"]


def green(task: Task, events: Sequence[str], most: Counter[str] | None = None) -> Result:
    """Return a task that ended well, and how often it reached each state."""
    counts = HuntResult(schedules=1, steps=9, replays=3, padded_replays=2, events=Counter(events))
    counts.most = most or Counter({CONTEXT: 30, PROMPTS: 1, ROWS: 4})
    return Result(task, Status.GREEN if task.bug is None else Status.UNAFFECTED, counts, None, 0, 1)


def run_of(settings: RunConfig) -> Run:
    """Return a run in which every trial reached all that it must."""
    run = Run(settings)
    run.results += [green(task, settings.required_events) for task in plan(settings)]
    return run


def test_a_run_of_everything_leaves_no_state_unreached() -> None:
    run = run_of(RunConfig("cpu"))
    found = scope(run)
    assert found.unreached == ()
    clean = sum(result.task.bug is None for result in run.results)
    assert f"{3 * clean} replays, {2 * clean} padded" in found.tried
    for said in (
        "contexts up to 30 tokens",
        "pages of 1 and 4 slots",
        "topk 1 and 2",
        "overlapping",
    ):
        assert said in found.tried
    assert found.untried.startswith("device cuda; topk other than 1 and 2")


@pytest.mark.parametrize(
    ("narrowed", "missing"),
    [
        (RunConfig("cpu", (("swa_pad", "decode"),)), "prefill of several requests"),
        (
            RunConfig("cpu", tuple(pair for pair in all_hunts() if pair[0] == "loc_memo_capture")),
            of_one_branch("eagle_draft"),
        ),
    ],
)
def test_a_narrowed_run_lists_the_states_of_a_run_of_everything(
    narrowed: RunConfig, missing: str
) -> None:
    """And none that it reached."""
    found = scope(run_of(narrowed))
    assert missing in found.unreached
    assert not set(found.unreached) & set(narrowed.required_events)
    assert f"{len(found.unreached)} states that a full run must reach" in found.untried


@pytest.mark.parametrize(
    ("replayed", "tried", "untried"),
    [
        (("eagle_draft", "decode"), "topk 1 and 2, 4 draft tokens", "topk other than 1 and 2"),
        (("decode",), None, "any topk"),
    ],
)
def test_a_width_of_drafts_was_tried_where_a_runner_of_drafts_replayed(
    replayed: tuple[str, ...], tried: str | None, untried: str
) -> None:
    """Not wherever the engine could have."""
    settings = RunConfig("cpu", tuple(pair for pair in all_hunts() if pair[1] == "eagle_draft"))
    run = Run(settings)
    run.results += [
        green(task, [f"{name}: replay" for name in replayed]) for task in plan(settings)
    ]
    found = scope(run)
    assert ("topk" in found.tried) is (tried is not None) and (tried or "") in found.tried
    assert f"{untried}, longer contexts" in found.untried


def test_what_did_not_replay_was_not_tried() -> None:
    run = run_of(RunConfig("cpu", (("swa_pad", "decode"),)))
    for result in run.results:
        result.hunt_result.replays = 0
    assert scope(run).tried == "nothing"


def test_the_largest_of_all_trials_counts() -> None:
    run = run_of(RunConfig("cpu", tuple(("swa_pad", one) for one in ("decode", "target_verify"))))
    run.results[0].hunt_result.most = Counter({CONTEXT: 47, PROMPTS: 3})
    tried = scope(run).tried
    assert "contexts up to 47 tokens" in tried and "at most 3 prompts in one forward" in tried
    assert "at most 4 requests in one forward" in tried


def test_a_lockstep_measures_the_largest_batch_and_the_longest_context() -> None:
    trial = TrialConfig("piecewise", buckets=(2, 4), token_buckets=(4, 12))
    steps = Admit(9, 9), Prefill((2, 3, 4), 12), Decode((0, 1, 2, 3)), Decode((0, 1))
    outcome = Lockstep(trial).play(Schedule(steps))
    assert 0 < outcome.most.pop(SLOT) <= trial.full_slots
    assert outcome.most == {CONTEXT: 11, PROMPTS: 3, ROWS: 4}
    result = HuntResult(most=Counter({CONTEXT: 5, PROMPTS: 8}))
    result.add(outcome)
    assert result.most == {CONTEXT: 11, PROMPTS: 8, ROWS: 4}


def test_terminal_record_page_and_summary_show_the_same_scope_and_strict_judges_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a green run that was narrowed: 0, and 125 with --strict."""
    required = RunConfig("cpu").required_events
    reached = [event for event in required if not event.startswith("target_verify")]

    def run_tasks(tasks: Sequence[Task], _: int, on_result: Callable[[Result], None]) -> None:
        for task in tasks:
            on_result(green(task, reached))

    monkeypatch.setattr("paritybit.harness.cli.regress.run_tasks", run_tasks)
    monkeypatch.setattr("paritybit.harness.campaigns.regress.CLEAN_SCHEDULES", 1)
    assert main([*RUN, "--out", str(tmp_path)]) == OK
    record = load(tmp_path / "latest" / "run.json", Record)
    assert "target_verify: replay" in record.scope.unreached
    page = html.unescape((tmp_path / "latest" / "index.html").read_text())
    shown = capsys.readouterr().out
    for line in (record.scope.tried, record.scope.untried):
        assert line in page and line in shown and text(line) in summary(report_of(record))
    assert all(state in page for state in record.scope.unreached)

    assert main([*RUN, "--strict", "--out", str(tmp_path)]) == CANNOT_RUN
    assert "--strict: this run never reached" in capsys.readouterr().err
    reached = list(required)
    everything = tuple(RunConfig("cpu").hunts)
    monkeypatch.setattr("paritybit.harness.cli.regress.hunts_of", lambda *_: everything)
    assert main([*RUN, "--strict", "--out", str(tmp_path)]) == OK
    assert json.loads((tmp_path / "latest" / "run.json").read_text())["scope"]["unreached"] == []
