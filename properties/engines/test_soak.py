"""Soaking an engine: its pieces, what they come to, and what is kept of one that was cut short."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns.executor import Campaign, Ended
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.engines import trial as trials
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.campaigns.soak import PIECE_STEPS, Soaked, figures, pieces_of
from paritybit.harness.engines.faults import Evidence, Finding, Verdict
from paritybit.harness.engines.fetch import FOLDER_VARIABLE, Found
from paritybit.harness.engines.legs import OURS, Leg
from paritybit.harness.engines.playlist import Kind
from paritybit.harness.engines.progress import Played, SoFar, tell
from paritybit.harness.engines.trial import Answer, Ran, Settings
from paritybit.harness.engines.worker import LegAnswer, LegTask
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case, dump_json
from paritybit.harness.schedules.schedule import Schedule

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, INTERRUPTED, MALFORMED

ENGINE = Found("sglang x", Path("package"))
SMALL = TrialConfig(buckets=(2, 4), token_buckets=(4, 24))
VIOLATED = Finding("decode", "gpt_oss", "kv_parity", "step 6: slot 7", ("swa_pad",))
LISTED = Finding("decode", "gpt_oss", "dense_agreement", "one key more", listed="known")


def pieces(steps: int, runner: str = "decode", **changed: Any) -> list[LegTask]:
    """Return the legs of a soak of one runner."""
    settings = Settings("cpu", seed=5, **changed)
    return pieces_of(runner, ENGINE, settings, steps, Path("log"))


def test_steps_are_shared_out_by_seed_over_all_models_of_a_runner() -> None:
    *soaked, own = pieces(2 * PIECE_STEPS + 1)
    assert [piece.seed for piece in soaked] == [5, 6, 7]
    assert [piece.preset for piece in soaked] == ["gpt_oss", "gemma3", "gpt_oss"]
    assert sum(piece.steps for piece in soaked) >= 2 * PIECE_STEPS + 1
    assert {piece.kind for piece in soaked} == {Kind.SOAKED}
    assert own.kind is Kind.OWN_KERNELS
    assert len({piece.label for piece in (*soaked, own)}) == 4


def test_every_model_has_a_piece_and_a_runner_without_kernels_no_leg_of_them() -> None:
    assert [piece.preset for piece in pieces(1)][:2] == ["gpt_oss", "gemma3"]
    assert [piece.kind for piece in pieces(1, "piecewise")] == [Kind.SOAKED]
    assert {piece.preset for piece in pieces(9, presets=("mimo",))} == {"mimo"}


def leg_of(trial: TrialConfig) -> Leg:
    """Return a leg of our own engine, which stands in for another."""
    return Leg(Lockstep(trial), Evidence(trial.runner), OURS)


def test_a_piece_plays_its_steps_of_drawn_schedules_and_of_traffic_and_no_schedule_more() -> None:
    leg, played = leg_of(SMALL), list[tuple[Schedule, int]]()
    leg.tell = lambda outcome: played.append((leg.lockstep.history[-1], outcome.steps))
    leg.play_steps(seed=3, steps=60)
    assert leg.result.steps >= 60 > leg.result.steps - played[-1][1]
    assert leg.result.steps == sum(steps for _, steps in played)
    assert leg.result.padded_replays > 0
    assert not leg.failing
    of_traffic = leg.traffic(3, 5)
    assert played[0][0] not in of_traffic
    assert played[-1][0] in of_traffic


def test_a_piece_is_the_same_from_the_same_seed_and_another_from_another() -> None:
    histories = []
    for seed in (3, 3, 4):
        leg = leg_of(SMALL)
        leg.play_steps(seed, 40)
        histories.append(list(leg.lockstep.history))
    assert histories[0] == histories[1] != histories[2]


def test_a_violation_does_not_end_a_piece_and_leaves_a_case_of_its_seed() -> None:
    leg = leg_of(SMALL.with_bug("swa_pad"))
    leg.play_steps(seed=3, steps=40)
    assert leg.result.steps >= 40
    assert "kv_parity" in leg.failing
    unshrunk = {case.target: case for case in leg.unshrunk(3)}
    (case,) = [case for case in leg.cases(3, 60) if case.target == "kv_parity"]
    assert case.seed == unshrunk["kv_parity"].seed == 3
    assert len(case.schedule.steps) <= len(unshrunk["kv_parity"].schedule.steps)


def played(steps: int = 150, padded: int = 7, **violated: int) -> dict[str, Any]:
    """Return what a leg has played."""
    return {
        "runner": "decode",
        "preset": "gpt_oss",
        "schedules": 4,
        "steps": steps,
        "replays": 9,
        "padded": padded,
        "events": {"decode: replay": 9},
        "properties": {name: {"violated": count} for name, count in violated.items()},
        "seconds": 10.0,
    }


def soaked(
    tasks: Sequence[LegTask],
    says: Callable[[LegTask], LegAnswer | None],
    heard: Sequence[Played] = (),
    **answer: Any,
) -> dict[str, Any]:
    """Return the figures of a soak of 300 steps whose legs say what is given."""
    said = {task.label: found for task in tasks if (found := says(task)) is not None}
    ran = Ran(tasks, said, interrupted=len(said) < len(tasks), seconds=12.0)
    for one in heard:
        ran.hear(one)
    whole = Answer(**answer)
    whole.take(ran, "cpu")
    return figures(Soaked(300, 5, ("decode", "cpu_graph"), whole, ran), "it", "out/cases")


def clean(task: LegTask) -> LegAnswer:
    """Say that a leg differs nowhere."""
    return LegAnswer(task.label, task.runner, task.preset, played=played())


def test_a_soak_in_which_nothing_differs_says_what_was_played_of_each_runner() -> None:
    found = soaked(pieces(300), clean)
    assert found["verdict"] == Verdict.ABSENT
    (row,) = found["runners"]
    assert (row["steps"], row["schedules"], row["replays"], row["padded"]) == (300, 8, 18, 14)
    assert row["events"] == {"decode: replay": 18}
    assert (row["seeds"], row["steps_per_second"]) == ([5, 6], 15.0)
    assert found["message"] == "it: 300 steps of decode, 14 padded replays: no difference found"


def test_every_violation_is_a_finding_with_its_seed_and_its_case() -> None:
    def says(task: LegTask) -> LegAnswer:
        if task.kind is Kind.OWN_KERNELS:
            return replace(clean(task), findings=[LISTED.to_json()])
        case = Case(TrialConfig(), Schedule(()), "kv_parity", task.seed, ())
        found = played(kv_parity=2)
        return replace(clean(task), played=found, findings=[VIOLATED.to_json()], cases=[case])

    found = soaked(pieces(300), says)
    assert found["verdict"] == Verdict.PRESENT
    assert [one["seed"] for one in found["findings"]] == [5, 6]
    assert {one["schedules"] for one in found["findings"]} == {2}
    assert found["findings"][1]["case"] == "out/cases/kv_parity-decode-gpt_oss-6.json"
    assert found["findings"][0]["faults"] == ["swa_pad"]
    assert found["message"].endswith(": kv_parity on decode")


def test_a_listed_finding_stands_apart_and_is_no_verdict() -> None:
    found = soaked(pieces(300), lambda task: replace(clean(task), findings=[LISTED.to_json()]))
    assert (found["verdict"], found["findings"]) == (Verdict.ABSENT, [])
    assert {one["listed"] for one in found["listed"]} == {"known"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 149}, "only 298 of 300 steps were played"),
        ({"padded": 0}, "no padded replay was played"),
    ],
)
def test_a_runner_that_falls_short_is_undecided(given: dict[str, int], said: str) -> None:
    found = soaked(pieces(300), lambda task: replace(clean(task), played=played(**given)))
    assert found["verdict"] == Verdict.UNDECIDED
    assert said in found["message"]


def test_a_leg_that_settles_nothing_leaves_the_soak_undecided_and_a_finding_counts_for_more() -> (
    None
):
    def says(task: LegTask) -> LegAnswer:
        return replace(clean(task), undecided="a part has moved")

    assert soaked(pieces(300), says)["verdict"] == Verdict.UNDECIDED
    found = soaked(pieces(300), lambda task: replace(says(task), findings=[VIOLATED.to_json()]))
    assert found["verdict"] == Verdict.PRESENT
    assert "a part has moved" in found["message"]


@pytest.mark.parametrize(
    ("runner", "verdict"),
    [("cpu_graph", Verdict.UNDECIDED), ("piecewise", Verdict.ABSENT)],
)
def test_a_runner_that_an_engine_lacks_is_undecided_where_it_was_asked_for(
    runner: str, verdict: Verdict
) -> None:
    lacking = [{"runner": runner, "reason": "nothing is called so"}]
    assert soaked(pieces(300), clean, lacking=lacking)["verdict"] == verdict


def test_pieces_that_find_that_the_engine_lacks_a_runner_say_so_once_and_leave_nothing_open() -> (
    None
):
    def says(task: LegTask) -> LegAnswer:
        if task.runner == "piecewise":
            return LegAnswer(task.label, task.runner, task.preset, lacking="its list has none")
        return clean(task)

    found = soaked([*pieces(300), *pieces(2 * PIECE_STEPS, "piecewise")], says)
    assert found["lacking"] == [{"runner": "piecewise", "reason": "its list has none"}]
    assert [row["runner"] for row in found["runners"]] == ["decode"]
    assert found["verdict"] == Verdict.ABSENT


def test_a_soak_of_no_runner_is_undecided() -> None:
    assert soaked([], clean)["verdict"] == Verdict.UNDECIDED


def test_what_an_interrupted_piece_told_is_kept_and_its_violations_are_findings() -> None:
    tasks = pieces(300)
    case = Case(TrialConfig(), Schedule(()), "kv_parity", 6, ())
    shown = SoFar([VIOLATED.to_json()], [], [json.loads(dump_json(case.to_json()))])
    first = Played(tasks[1].label, 30, 150, "steps", 1, 30, 12, 6, ("kv_parity",), shown)
    last = Played(tasks[1].label, 87, 150, "steps", 3, 87, 40, 20, ("kv_parity",))
    found = soaked(tasks, lambda task: clean(task) if task.seed == 5 else None, [first, last])
    assert found["interrupted"]
    (row,) = found["runners"]
    assert (row["steps"], row["replays"], row["padded"]) == (237, 49, 27)
    assert row["steps_per_second"] == 15.0
    (finding,) = found["findings"]
    assert (finding["property"], finding["message"]) == (VIOLATED.property, VIOLATED.message)
    assert (finding["seed"], finding["schedules"]) == (6, None)
    assert finding["case"] == "out/cases/kv_parity-decode-gpt_oss-6.json"
    assert "interrupted; so far, 237 steps" in found["message"]
    assert "only 237 of 300 steps were played" in found["message"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a source tree with a runner's name in it, and nothing that can be driven."""
    (tmp_path / "kept" / DEPENDENCIES).mkdir(parents=True)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "kept"))
    package = tmp_path / "python" / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "runner.py").write_text("class CudaGraphRunner: ...\n")
    return tmp_path


def soak_of(tree: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Soak the decode runner of a tree; return the exit code and the figures."""
    path = tree / "out" / "soak.json"
    asked = ["soak", "--engine", str(tree), "--runner", "decode", "--steps", "10"]
    code = main([*asked, "--device", "cpu", "--workers", "1", "--record", str(path), *words])
    return code, json.loads(path.read_text())["figures"]


def test_an_engine_whose_parts_have_moved_is_undecided_and_leaves_a_record(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = soak_of(tree)
    assert (code, found["verdict"]) == (CANNOT_RUN, "undecided")
    assert found["runners"][0]["steps"] == 0
    assert "only 0 of 10 steps were played" in found["message"]
    assert found["message"] in capsys.readouterr().out


def test_an_interrupted_soak_exits_so_and_its_record_says_so(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut_short(
        campaign: Campaign[LegTask, LegAnswer],
        tasks: Sequence[LegTask],
        processes: int,
        on_end: Callable[[Ended[LegTask, LegAnswer]], None],
    ) -> None:
        case = Case(TrialConfig(), Schedule(()), "kv_parity", tasks[0].seed, ())
        found = replace(clean(tasks[0]), findings=[VIOLATED.to_json()], cases=[case])
        on_end(Ended(tasks[0], 1.0, found))
        shown = SoFar([replace(VIOLATED, property="write_frame").to_json()], [], [])
        told = Played(tasks[1].label, 4, 5, "steps", 1, 4, 2, 1, ("write_frame",), shown)
        tell(Path(tasks[1].progress), told)
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "execute", cut_short)
    code, found = soak_of(tree)
    assert (code, found["interrupted"]) == (INTERRUPTED, True)
    assert [one["property"] for one in found["findings"]] == ["kv_parity", "write_frame"]
    assert found["runners"][0]["steps"] == 154
    path = tree / "out" / "soak-cases" / "kv_parity-decode-gpt_oss-0.json"
    assert json.loads(path.read_text())["case"]["target"] == "kv_parity"
    assert found["findings"][0]["case"] == "soak-cases/kv_parity-decode-gpt_oss-0.json"
    assert f"paritybit replay {path}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--engine", "sglang==1", "--seeds", "3"], "--seeds and --table"),
        (["--engine", "sglang==1", "--table", "t.md"], "--seeds and --table"),
        (["--engine", "sglang==1", "--steps", "0"], "--steps 0 plays nothing"),
        (["--engine", "sglang==1", "--runner", "no_runner"], "unknown runner 'no_runner'; valid:"),
        (["--engine", "sglang"], "sglang"),
        (["--runner", "decode"], "--runner and --preset need --engine"),
        (["--preset", "mimo"], "--runner and --preset need --engine"),
    ],
)
def test_a_soak_that_makes_no_sense_is_refused_in_one_sentence(
    wrong: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["soak", "--record", str(tmp_path / "soak.json"), *wrong]) == MALFORMED
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
