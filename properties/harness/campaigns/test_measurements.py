"""What is measured and kept: endurance and speed. The figures say what they were measured on."""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns import soak as soaking
from paritybit.harness.campaigns.executor import execute
from paritybit.harness.campaigns.fresh import PlayFresh
from paritybit.harness.campaigns.measuring import bandwidth, captures, profile, sharing
from paritybit.harness.campaigns.soak import (
    CleanSteps,
    Detections,
    clean_steps,
    hunt_by_seed,
)
from paritybit.harness.checks.play import Outcome
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import one_size
from paritybit.harness.machine.workers import Workers
from paritybit.harness.records.schema import VERSION
from paritybit.harness.schedules.coverage import required_replays
from paritybit.reference.config import PRESETS, Shape
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import ONE_PER_ENGINE, RUNNERS

from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    INTERRUPTED,
    OK,
    Data,
    kept_traceback,
)
from properties.support.harness.scripted import ERROR, Script, Scripted, clean, losing, violating

PAIR = ("swa_int64", "breakable")


def evidence(path: Path, kind: str) -> Data:
    """Return the figures of an evidence file that says what they were measured on."""
    data: Data = json.loads(path.read_text())
    assert data["format"] == f"paritybit-{kind}"
    assert data["version"] == VERSION
    assert data["environment"]["device"] == "cpu"
    assert torch.__version__.startswith(data["environment"]["torch"].split("+")[0])
    known = {"device_name", "python", "commit", "dirty", "processes", "gpus", "mps"}
    assert known <= data["environment"].keys()
    figures: Data = data["figures"]
    return figures


def three_trials(device: str, shape: Shape = Shape.TINY) -> list[TrialConfig]:
    """Return one small trial of each engine."""
    return [one_size(TrialConfig(runner, device=device, shape=shape)) for runner in ONE_PER_ENGINE]


@pytest.fixture
def short_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A soak of three trials and one bug: a piece of work is over after one trial."""
    monkeypatch.setattr(soaking, "CHUNK_STEPS", 1)
    monkeypatch.setattr(soaking, "EXAMPLES", 9)
    monkeypatch.setattr(soaking, "HUNT_EXAMPLES", 9)
    monkeypatch.setattr(soaking, "BUGS", {PAIR[0]: BUGS[PAIR[0]]})
    monkeypatch.setattr(soaking, "affected_runners", lambda _: PAIR[1:])
    monkeypatch.setattr(soaking, "trials", three_trials)


SOAK = ["soak", "--seeds", "1", "--workers", "1", "--device", "cpu"]


@pytest.mark.usefixtures("short_soak")
def test_hunts_alone_leave_a_table_of_what_each_bug_needed(tmp_path: Path) -> None:
    """Without a clean step; a median that is late is not as hoped."""
    record, table = tmp_path / "soak.json", tmp_path / "table.md"
    asked = [*SOAK, "--steps", "0", "--record", str(record), "--table", str(table)]
    assert main(asked) == OK
    rows = table.read_text().splitlines()
    assert rows[2] == "| `swa_int64` | `breakable` | `index_contract` | 1 | 1 | 1 | 1 |"
    assert evidence(record, "soak")["clean"]["false_alarms"] == 0


@pytest.mark.usefixtures("short_soak")
def test_a_soak_records_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three trials, one of each engine, in which every runner must replay."""
    monkeypatch.setattr(soaking, "EXAMPLES", 3)
    path = tmp_path / "new" / "soak.json"
    assert main([*SOAK, "--steps", "3", "--record", str(path)]) == OK
    assert " 0 false alarms" in capsys.readouterr().out
    figures = evidence(path, "soak")
    assert figures["as_hoped"] is True
    figured = figures["clean"]
    assert figured["steps"] >= 3
    assert figured["schedules"] == 3 * 3
    assert figured["seeds"] == [0, 2]
    assert [trial["runner"] for trial in figured["trials"]] == list(ONE_PER_ENGINE)
    assert figured["false_alarms"] == 0
    assert figured["padded replay"] > 0
    for runner in RUNNERS:
        assert figured[f"{runner}: replay"] >= figured[f"{runner}: padded replay"] > 0
    (bug,) = figures["bugs"]
    assert (bug["bug"], bug["runner"], bug["caught"]) == (*PAIR, 1)


def scripted_soak(monkeypatch: pytest.MonkeyPatch, script: Script) -> Callable[..., Data]:
    """Return what soaks by a script: two chunks, and one bug by one seed."""
    monkeypatch.setattr(soaking, "lockstep_of", lambda trial: Scripted(trial, script))

    def soak() -> Data:
        return soaking.soak("cpu", 2, range(1), 0, Workers(1))

    return soak


def replaying(*events: str) -> Outcome:
    """Return the outcome of a clean playing in which something was replayed."""
    outcome = clean()
    outcome.events.update(events)
    return outcome


def by_trial(of_clean: Callable[[], Outcome], of_broken: Callable[[], Outcome]) -> Script:
    """Return a script that depends on whether the trial has a bug."""
    return lambda lockstep, _: of_broken() if lockstep.trial.bugs else of_clean()


EVERYTHING = required_replays(RUNNERS)


SOAKS: dict[str, tuple[Sequence[str], str, tuple[bool, bool], str]] = {
    "all is as hoped": (EVERYTHING, "index_contract", (True, False), "never reached: none"),
    "it left a runner out": (
        EVERYTHING[:-1],
        "index_contract",
        (False, True),
        f"states never reached: {EVERYTHING[-1]}",
    ),
    "some seed misses a bug": (
        EVERYTHING,
        "log_hygiene",
        (False, False),
        f"within 9 schedules (1 seeds): {'@'.join(PAIR)};",
    ),
}
"""What replays, what the bug violates, whether it is as hoped and undecided, and what is said."""


@pytest.mark.usefixtures("short_soak")
@pytest.mark.parametrize("end", SOAKS)
def test_a_soak_is_as_hoped_where_everything_replays_and_every_bug_is_caught(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed, violated, verdict, said = SOAKS[end]
    script = by_trial(lambda: replaying(*replayed), lambda: violating(violated))
    figures = scripted_soak(monkeypatch, script)()
    assert (figures["as_hoped"], figures["undecided"]) == verdict
    assert figures["errors"] == []
    assert said in figures["message"]
    assert figures["bugs"][0]["caught"] == (violated == "index_contract")


@pytest.mark.usefixtures("short_soak")
def test_a_false_alarm_is_a_finding_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    first = first_of_two_alarms(monkeypatch, lambda _: violating("write_frame"))
    assert first["shrunk"].startswith("Schedule(steps=(), ")
    assert first["undeclared"] is None


@pytest.mark.usefixtures("short_soak")
def test_a_false_alarm_that_no_fresh_process_shows_is_told_as_undeclared_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the schedule that was drawn."""
    first = first_of_two_alarms(monkeypatch, lambda _: clean())
    assert not first["shrunk"].startswith("Schedule(steps=(), ")
    assert "depends on undeclared state" in first["undeclared"]


def first_of_two_alarms(monkeypatch: pytest.MonkeyPatch, play: PlayFresh) -> Data:
    """Return the first alarm of a soak whose clean trials violate; `play` is fresh processes."""
    monkeypatch.setattr(soaking, "play_fresh", play)
    script = by_trial(lambda: violating("write_frame"), lambda: violating("index_contract"))
    figures = scripted_soak(monkeypatch, script)()
    assert (figures["as_hoped"], figures["clean"]["false_alarms"]) == (False, 2)
    first: Data = figures["clean"]["alarms"][0]
    assert (first["seed"], first["violated"]) == (0, {"write_frame": 9})
    return first


@pytest.mark.usefixtures("short_soak")
def test_a_soak_of_which_a_piece_gave_no_result_is_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever lost it: here, all hunts of the bug."""
    script = by_trial(lambda: replaying(*EVERYTHING), lambda: violating("index_contract"))
    monkeypatch.setattr(
        soaking,
        "execute",
        lambda campaign, tasks, workers, on_end: execute(
            campaign, tasks if campaign is soaking.CLEAN else [], workers, on_end
        ),
    )
    figures = scripted_soak(monkeypatch, script)()
    assert (figures["as_hoped"], figures["undecided"]) == (False, True)
    assert figures["message"].endswith("; 1 of 3 tasks gave no result")


@pytest.mark.usefixtures("short_soak")
def test_an_error_of_ours_in_a_soak_is_no_finding_and_the_rest_finishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a chunk, or of a bug's hunts; beside a miss it counts for less."""
    failing = by_trial(lambda: violating(error=ERROR), lambda: violating("index_contract"))
    figures = scripted_soak(monkeypatch, failing)()
    assert (figures["as_hoped"], figures["undecided"]) == (False, True)
    tasks = [failure["task"] for failure in figures["errors"]]
    assert tasks == ["clean steps from seed 0", "clean steps from seed 1"]
    assert all(ERROR in failure["error"] for failure in figures["errors"])
    assert figures["bugs"][0]["caught"] == 1
    assert figures["message"].endswith("seed 1 failed: ZeroDivisionError: of ours")
    failing = by_trial(lambda: replaying(*EVERYTHING), lambda: violating(error=ERROR))
    figures = scripted_soak(monkeypatch, failing)()
    assert [failure["task"] for failure in figures["errors"]] == ["@".join(PAIR)]
    assert (figures["undecided"], figures["bugs"]) == (True, [])
    missing = by_trial(lambda: violating(error=ERROR), clean)
    assert not scripted_soak(monkeypatch, missing)()["undecided"]


@pytest.mark.usefixtures("short_soak")
def test_an_interrupted_soak_keeps_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And has no verdict."""

    def interrupted(campaign: Any, tasks: Any, workers: Workers, on_end: Any) -> None:
        if campaign is soaking.HUNTS:
            raise KeyboardInterrupt
        execute(campaign, tasks, workers, on_end)

    monkeypatch.setattr(soaking, "execute", interrupted)
    script = by_trial(lambda: replaying(*EVERYTHING), lambda: violating("index_contract"))
    figures = scripted_soak(monkeypatch, script)()
    assert (figures["interrupted"], figures["as_hoped"], figures["bugs"]) == (True, False, [])
    assert figures["clean"]["schedules"] == 18
    assert figures["message"].startswith("interrupted; so far, ")


def test_a_lost_device_ends_a_piece_of_work_and_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted_soak(monkeypatch, losing)
    played = clean_steps(soaking.Chunk(TrialConfig(), 0, 9))
    assert played.spoiled
    (alarm,) = played.alarms
    assert alarm["violated"] == {"captured_path": 1}
    hunted = hunt_by_seed(soaking.SeededHunts("cpu", *PAIR, (0, 1)))
    assert (hunted.needed, hunted.spoiled) == ((), True)
    assert not (CleanSteps().spoiled or Detections(1, ()).spoiled)


def test_a_soak_hunts_a_bug_with_the_features_that_it_needs() -> None:
    hunted = hunt_by_seed(soaking.SeededHunts("cpu", "scale_of_capture", "decode", (0,)))
    assert len(hunted.needed) == 1


CODES: dict[str, tuple[Data, int]] = {
    "as hoped": ({"as_hoped": True, "undecided": False}, OK),
    "a finding": ({"as_hoped": False, "undecided": False}, FINDING),
    "no verdict": ({"as_hoped": False, "undecided": True}, CANNOT_RUN),
    "interrupted": ({"as_hoped": False, "undecided": False, "interrupted": True}, INTERRUPTED),
}


@pytest.mark.parametrize("end", CODES)
def test_the_exit_code_of_a_soak_follows_from_its_figures(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says, code = CODES[end]
    errors = [{"task": "a", "error": ERROR}] * 2 if code == CANNOT_RUN else []
    figures = {"interrupted": False, **says, "errors": errors, "message": "missed: swa_int64"}
    monkeypatch.setattr("paritybit.harness.cli.measure.soak", lambda *_: figures)
    path = tmp_path / "soak.json"
    assert main(["soak", "--device", "cpu", "--record", str(path)]) == code
    captured = capsys.readouterr()
    assert captured.out == "missed: swa_int64\n"
    assert (kept_traceback(captured.err) if errors else captured.err) == (ERROR if errors else "")
    assert evidence(path, "soak") == figures


@pytest.fixture
def short_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """One measured repetition of one preset, of a shorter workload, and a profile of a hunt alone.

    Hunts shrink little, and the pool of the sanitizer is small.
    The clock of the CPU goes on by one second whenever it is read, on a busy machine as well.
    """
    ticks = itertools.count(0.0)
    clocks = SimpleNamespace(process_time=lambda: next(ticks), perf_counter=time.perf_counter)
    monkeypatch.setattr("paritybit.harness.campaigns.bench.time", clocks)
    monkeypatch.setattr("paritybit.harness.campaigns.bench.REPEATS", 1)
    monkeypatch.setattr("paritybit.harness.campaigns.bench.DECODES", 6)
    monkeypatch.setattr("paritybit.harness.campaigns.bench.SCHEDULES", 1)
    monkeypatch.setattr("paritybit.harness.campaigns.bench.PRODUCTS", 200)
    monkeypatch.setattr("paritybit.harness.campaigns.bench.PRESETS", {"mimo": PRESETS["mimo"]})
    monkeypatch.setattr("paritybit.harness.campaigns.measuring.commands.ROUNDS", 1)
    monkeypatch.setattr("paritybit.harness.campaigns.hunt.SHRINKING_STEPS", 20)
    monkeypatch.setattr("paritybit.harness.cli.bench.CPU_GIB", 0.01)
    monkeypatch.setattr(sharing, "SECONDS", 0.01)
    monkeypatch.setattr(captures, "HUNTS", (("window_one_short", "decode"),))
    hunt, _ = profile.tasks("cpu")
    monkeypatch.setattr(profile, "tasks", lambda _: [hunt])
    monkeypatch.setitem(bandwidth.BYTES, "cpu", 2**20)


@pytest.mark.usefixtures("short_bench")
def test_a_bench_records_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    words = ["bench", "--device", "cpu", "--processes", "1", "--record", str(path)]
    assert main(words) == OK
    shown_rows = capsys.readouterr().out.splitlines()
    figures = evidence(path, "bench")
    assert [row["preset"] for row in figures["lockstep"]] == ["mimo"]
    assert len(shown_rows) >= 6
    (shared,) = figures["sharing"]
    assert (shared["processes"], shared["gpus"], shared["mps"]) == (1, 0, False)
    assert (
        f"1 process: {shared['steps_per_second']:.0f} differential steps/s in total" in shown_rows
    )
    hunts = figures["captures"]
    assert hunts["hunts"] == ["window_one_short@decode"]
    assert 0 < hunts["share_of_captures"] < 1
    assert any(row.endswith("CPU seconds in 1 hunts") for row in shown_rows)
    (costs,) = figures["profile"]
    assert costs["task"].startswith("swa_pad@decode")
    for shares in (costs["parts"], costs["files"]):
        assert len(shares) == profile.LARGEST
        assert 1 > sum(shares.values()) > 0
    budget = figures["budgets"][0]
    assert budget["now"] == hunts["seconds"]
    assert any(row.split()[-1] == budget["verdict"] and "of a hunt" in row for row in shown_rows)
    for row in figures["commands"]:
        assert f"{row['command']}: {row['cpu_seconds']} CPU seconds" in shown_rows
        assert row["cpu_seconds"] > 0
    assert figures["commands"][0]["command"] == "paritybit --help"
    memory = figures["bandwidth"]
    assert min(memory["comparison_gb_per_second"], memory["copy_gb_per_second"]) > 0
    for row in figures["lockstep"]:
        assert f"as long as {row['step_in_products']} matrix products" in "".join(shown_rows)
        parts = row["parts_milliseconds"]
        assert sum(parts.values()) == pytest.approx(row["step_milliseconds"], abs=0.1)
        within = [parts[name] for name in ("planning", "eager", "replay")]
        assert min(within) > 0
        assert sum(within) < row["step_milliseconds"]
        assert min(row["captures_per_second"], row["schedules_per_second"]) > 0
        assert row["replays"] > row["padded_replays"] > 0
        assert row["slowest"] <= row["steps_per_second"] <= row["fastest"]


def test_a_bench_of_what_is_not_clean_has_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(trial: TrialConfig) -> Scripted:
        return Scripted(trial, lambda *_: violating("kv_parity"))

    monkeypatch.setattr("paritybit.harness.campaigns.bench.Lockstep", build)
    assert main(["bench", "--device", "cpu"]) == CANNOT_RUN
    captured = capsys.readouterr()
    assert captured.out == ""
    said = kept_traceback(captured.err)
    assert "RuntimeError: the benchmark schedule has violations" in said
