"""A released engine on trial. What needs one fetched is skipped, and says so, where none is."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.__main__ import main
from harness.cli.engine_display import changes
from harness.engines import fetch as engines
from harness.engines import record as engine_record
from harness.engines.case import EngineCase, cases_of
from harness.engines.faults import FAULTS, Observed, Verdict, overall
from harness.engines.trial import SHRINKING
from harness.lockstep.config import CannotRunError, TrialConfig, UnknownNameError
from harness.schedules.schedule import to_json
from reference.config import PRESETS
from reference.model import Model
from reference.oracle import dense_logits
from reference.torch_ops import TorchOps
from reports.engine_page import render
from subjects.engines.sglang.graphs import CpuGraph, recording, whole
from subjects.engines.sglang.loading import STUBS, StubFinder, named, package_folder

ROOT = Path(__file__).parent.parent
OK, FINDING, MALFORMED, CANNOT_RUN = 0, 1, 2, 125


@cache
def meddled(version: str, meddling: str) -> Any:
    """Return what one schedule shows of a release that lies here, its populate meddled with."""
    package = package_folder(engines.folder() / f"sglang-{version}")
    if package is None:
        pytest.skip(f"engine trials were not run: `make engine VERSION={version}` fetches one")
    command = [sys.executable, "-m", "properties.meddled", str(package), meddling]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_the_release_that_broke_is_caught_and_the_one_that_mended_is_clean() -> None:
    broke, mended = meddled("0.5.11", "none"), meddled("0.5.12", "none")
    assert broke["faults"]["swa_pad"] == Verdict.PRESENT
    assert mended["faults"]["swa_pad"] == Verdict.ABSENT
    assert mended["violated"] == ["hermetic_reads"]
    assert broke["padded"] > 0 < mended["padded"]


def test_healing_the_fault_turns_its_verdict_and_no_other() -> None:
    healed = meddled("0.5.11", "heal_swa_pad")
    assert healed["faults"]["swa_pad"] == Verdict.ABSENT
    assert healed["faults"]["req_pool_pad"] == Verdict.PRESENT
    assert "write_frame" not in healed["violated"]


def test_planting_the_fault_in_the_release_that_mended_it_turns_its_verdict() -> None:
    planted = meddled("0.5.12", "plant_swa_pad")
    assert planted["faults"]["swa_pad"] == Verdict.PRESENT
    assert planted["padding"]["out_cache_loc_swa"] == "kept, and read"


def test_healing_the_stale_rows_turns_that_verdict() -> None:
    assert meddled("0.5.12", "none")["faults"]["req_pool_pad"] == Verdict.PRESENT
    healed = meddled("0.5.12", "heal_req_pool_pad")
    assert healed["faults"]["req_pool_pad"] == Verdict.ABSENT
    assert healed["violated"] == []
    assert healed["padding"]["req_pool_indices"] == "reset"


def test_another_token_in_a_live_row_parts_the_sides() -> None:
    assert "logits_parity" in meddled("0.5.12", "lose_a_token")["violated"]


def test_what_is_kept_is_told_apart_from_what_is_read() -> None:
    padding = meddled("0.5.12", "none")["padding"]
    assert padding["input_ids"] == "kept, nobody live reads it"
    assert padding["out_cache_loc"] == "reset"
    assert meddled("0.5.11", "none")["padding"]["out_cache_loc_swa"] == "kept, and read"


def test_own_kernels_are_off_the_oracle_where_the_fault_is_and_nowhere_else() -> None:
    assert meddled("0.5.11", "none")["off"] > 0
    assert meddled("0.5.12", "none")["off"] == 0


def test_windows_are_measured_by_phase() -> None:
    window = PRESETS["gpt_oss"].tiny.window
    assert meddled("0.5.12", "none")["windows"] == {"decode": window, "extend": window + 1}


def test_prefill_runners_are_told_apart_by_the_dtype_of_their_locations() -> None:
    assert meddled("0.5.11", "none")["piecewise"] == Verdict.PRESENT
    assert meddled("0.5.12", "none")["piecewise"] == Verdict.ABSENT


def test_healing_the_rows_of_the_draft_extend_runner_turns_its_verdict() -> None:
    found = meddled("0.5.12", "none")
    assert found["draft_extend"] == Verdict.PRESENT
    assert found["healed_draft_extend"] == Verdict.ABSENT


@pytest.mark.parametrize("spec", ["sglang", "sglang==x", "/nowhere", "."])
def test_what_is_no_engine_is_a_malformed_command_line(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["regress", "--engine", spec]) == MALFORMED
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("ERROR: no version (from versions: 0.5.11, 0.5.12)", ValueError),
        ("ERROR: no version (from versions: none)", CannotRunError),
        ("", CannotRunError),
    ],
)
def test_a_release_that_does_not_exist_is_told_from_an_index_that_does_not_answer(
    said: str,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(engines, "_pip", lambda *arguments: said)
    with pytest.raises(error, match=r"0\.0\.0"):
        engines.find("sglang==0.0.0")


def test_an_engine_that_cannot_be_imported_is_skipped_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    code = main(["regress", "--engine", str(tmp_path), "--out", str(tmp_path / "out")])
    assert code == CANNOT_RUN
    error = capsys.readouterr().err
    assert "cannot be tried here" in error
    assert error.count("\n") == 1


def test_a_bug_that_behaviour_does_not_tell_cannot_be_decided() -> None:
    with pytest.raises(CannotRunError, match="swa_pad"):
        engine_record.faults_of(["loc_memo_warning"])
    with pytest.raises(UnknownNameError):
        engine_record.faults_of(["no_bug"])
    with pytest.raises(UnknownNameError):
        engine_record.faults_of(["swa_pad@no_runner"])
    assert engine_record.faults_of(["swa_pad@decode"]) == [("swa_pad", "decode")]


def answer(**faults: str) -> dict[str, Any]:
    """Return an answer with verdicts on the decode runner."""
    message = {"observations": 3, "message": "seen"}
    return {
        "faults": [
            {"fault": fault, "runner": "decode", "verdict": verdict, **message}
            for fault, verdict in faults.items()
        ]
    }


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["swa_pad"], Verdict.ABSENT),
        (["req_pool_pad"], Verdict.PRESENT),
        (["swa_pad", "req_pool_pad"], Verdict.PRESENT),
        (["swa_int64"], Verdict.UNDECIDED),
        (["swa_pad@cpu_graph"], Verdict.UNDECIDED),
        ([], Verdict.PRESENT),
    ],
)
def test_the_verdict_is_of_the_fault_asked_about(asked: list[str], expected: Verdict) -> None:
    found = answer(swa_pad="absent", req_pool_pad="present")
    assert engine_record.judge(found, engine_record.faults_of(asked)) == expected


def test_what_was_never_observed_is_undecided() -> None:
    observed = Observed("decode")
    observed.add("swa_pad", None)
    observed.lacks("swa_int64", "it has none")
    verdicts = {each.fault: each.verdict for each in observed.judge()}
    assert verdicts == {
        "swa_pad": Verdict.ABSENT,
        "swa_int64": Verdict.ABSENT,
        "req_pool_pad": Verdict.UNDECIDED,
    }
    assert overall([each.to_json() for each in observed.judge()], "swa_pad") == Verdict.ABSENT


def test_a_walk_says_where_a_fault_appears_and_where_it_is_gone() -> None:
    verdicts = ("absent", "present", "undecided", "absent")
    walked = [(str(place), {"answer": answer(swa_pad=each)}) for place, each in enumerate(verdicts)]
    assert changes(walked) == [
        "swa_pad on decode: appears in 1, after 0",
        "swa_pad on decode: is gone in 3, after 1",
    ]


def test_a_cpu_graph_keeps_a_kernel_whole_and_runs_no_python_again() -> None:
    CpuGraph.ops = TorchOps()
    source, doubled, total = torch.ones(3), torch.zeros(3), torch.zeros(3)
    ran: list[str] = []

    @whole
    def kernel(out: torch.Tensor, values: torch.Tensor) -> None:
        out.copy_(torch.from_numpy(values.numpy() * 2))

    graph = CpuGraph()
    with recording(graph):
        ran.append("python")
        kernel(doubled, source)
        total.copy_(doubled + source)
    source.fill_(5)
    graph.replay()
    assert total.tolist() == [15, 15, 15]
    assert ran == ["python"]


def test_stubs_are_the_names_listed_and_what_lies_below_them() -> None:
    finder = StubFinder()
    assert all(finder.find_spec(name) for name in STUBS)
    assert finder.find_spec("sglang.srt.configs.model_config") is not None
    assert finder.find_spec("sglang.srt.utils") is None
    assert finder.find_spec("transformers_other") is None


def test_arguments_that_a_signature_does_not_name_are_left_out() -> None:
    def make(*, size: int) -> int:
        return size

    assert named(make, size=3, transpose=False)() == 3


def test_windows_of_each_token_generalise_the_model_s_own() -> None:
    config = PRESETS["gpt_oss"].tiny
    model = Model(config, torch.float32, torch.device("cpu"))
    tokens = torch.arange(20) % config.vocab
    untracked = torch.full((20,), -1)
    same = torch.full((20,), config.window)
    right = dense_logits(model, tokens, 0, untracked, 0)
    assert torch.equal(dense_logits(model, tokens, 0, untracked, 0, same), right)
    wider = dense_logits(model, tokens, 0, untracked, 0, same + 1)
    assert not torch.equal(wider[-1], right[-1])
    assert torch.equal(wider[: config.window], right[: config.window])


def test_the_page_says_what_was_not_the_engine_s() -> None:
    data = {
        **answer(swa_pad="present"),
        "legs": [],
        "padding": [],
        "policies": [],
        "findings": ["a finding"],
        "moved": ["a part"],
        "stubs": ["transformers"],
        "emulated": ["the graph <b>"],
        "assumed_off": [],
        "modules": [],
        "seconds": 1.0,
    }
    record = engine_record.make("sglang 1", "cpu", "paritybit", [("swa_pad", None)], data)
    page = render(record)
    assert all(each in page for each in ("transformers", "a part", "a finding", "the graph &lt;b"))
    assert "<b>" not in page
    assert set(record["faults"]) == set(FAULTS)


def test_the_shrinking_schedule_leaves_a_request_parked() -> None:
    widths = [len(step.picks) for step in SHRINKING.steps if hasattr(step, "picks")]
    assert widths[:3] == [4, 4, 3]


def shrinking_case(version: str) -> EngineCase:
    """Return a case of stray writes on a release that lies here."""
    if package_folder(engines.folder() / f"sglang-{version}") is None:
        pytest.skip(f"engine trials were not run: `make engine VERSION={version}` fetches one")
    settings, schedule = TrialConfig().to_json(), to_json(SHRINKING)
    return EngineCase(f"sglang=={version}", "decode", settings, schedule, 0, "write_frame", "")


def test_a_case_of_an_engine_replays_there_and_is_clean_where_the_fault_was_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    shrinking_case("0.5.12")
    shrinking_case("0.5.11").write(path)
    assert main(["replay", str(path)]) == FINDING
    assert "write_frame is violated" in capsys.readouterr().out
    assert main(["replay", str(path), "--engine", "sglang==0.5.12"]) == OK
    assert "write_frame holds" in capsys.readouterr().out


def test_a_trial_keeps_a_case_of_each_property_by_leg() -> None:
    each = {"runner": "decode", "trial": TrialConfig().to_json(), "schedule": to_json(SHRINKING)}
    found = cases_of("sglang==1", 3, {"cases": [{**each, "target": "kv_parity", "message": "x"}]})
    assert list(found) == ["kv_parity-decode-gpt_oss.json"]
    (case,) = found.values()
    assert (case.engine, case.seed, case.target) == ("sglang==1", 3, "kv_parity")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("runner", 3, "runner of a case cannot be 3"),
        ("seed", "0", "seed of a case cannot be '0'"),
        ("schedule", [], "a schedule has exactly the keys"),
        ("extra", 1, "a case has exactly the keys"),
        ("version", 2, "has version 2"),
    ],
)
def test_a_malformed_case_of_an_engine_is_told_in_one_sentence(
    key: str, value: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    settings, schedule = TrialConfig().to_json(), to_json(SHRINKING)
    EngineCase("sglang==1", "decode", settings, schedule, 0, "kv_parity", "").write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert main(["replay", str(path)]) == MALFORMED
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_case_of_this_build_takes_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "properties" / "corpus" / "swa_pad@decode.json"
    assert main(["replay", str(path), "--engine", "sglang==0.5.11"]) == MALFORMED
    assert "no case of an engine" in capsys.readouterr().err
