"""The suite's own pytest options: a real pytest in a process of its own, and the hooks by hand."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
import torch

import conftest
from harness.campaigns.case import load_case
from harness.checks.table import PROPERTIES
from harness.lockstep.config import DTYPES
from properties.support.trials import PAGE_SIZES
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS, runners_of
from subjects.runners import RUNNERS

ROOT = Path(__file__).parent.parent
USAGE_ERROR, TESTS_FAILED = 4, 1
LONGEST = 150.0
"""Seconds after which a run is taken to hang."""

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


def python(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in `folder`, with this tree importable and no word of ours set."""
    ours = ("PYTEST_", "HYPOTHESIS_", "CI")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )


def suite(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run this project's pytest; its artifacts go below `folder`."""
    settings = ("-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    return python("-m", "pytest", *settings, *words, folder=folder)


AFFECTED = runners_of(BUGS["swa_pad"])
"""The runners that a clean suite with this bug is red on."""

NAMES: dict[str, Iterable[str]] = {"bug": BUGS, "runner": RUNNERS, "preset": PRESETS}


@pytest.mark.parametrize("option", NAMES)
def test_a_name_that_this_build_lacks_is_a_usage_error(option: str) -> None:
    done = suite(f"--{option}", "nonsense")
    assert done.returncode == USAGE_ERROR
    assert f"unknown {option} 'nonsense'; valid: {', '.join(NAMES[option])}" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "passed" not in done.stdout


def test_a_device_that_no_build_has_is_a_usage_error() -> None:
    done = suite("--device", "tpu")
    assert done.returncode == USAGE_ERROR
    assert "'auto', 'cpu', 'cuda'" in done.stderr


@without_gpu
@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_cuda_without_a_gpu_is_a_usage_error_and_never_a_skip(workers: list[str]) -> None:
    done = suite("--device", "cuda", *workers)
    assert done.returncode == USAGE_ERROR
    assert "--device cuda was asked for, but no GPU is visible here" in done.stderr
    assert "skipped" not in done.stdout


def test_the_options_stand_in_one_group_of_the_help() -> None:
    done = suite("--help")
    assert done.returncode == 0
    groups = re.findall(r"^differential parity of graph replay:\n((?:  .*\n)+)", done.stdout, re.M)
    assert len(groups) == 1
    assert re.findall(r"^  --(\w+)", groups[0], re.M) == ["device", "runner", "preset", "bug"]


@pytest.mark.parametrize(
    ("profile", "seed", "schedules"),
    [("ci", r"0", "4"), ("dev", r"\d+", "25"), ("nightly", r"\d+", "250")],
)
def test_the_header_tells_device_seed_and_schedules(
    profile: str, seed: str, schedules: str, tmp_path: Path
) -> None:
    """Only the ci profile is bound to a seed."""
    done = suite(
        *("--hypothesis-profile", profile, "--device", "cpu", "--collect-only"),
        str(ROOT / "properties" / "test_report.py"),
        folder=tmp_path,
    )
    assert re.search(
        rf"^paritybit: device cpu, seed {seed}, {schedules} schedules a trial$", done.stdout, re.M
    )


@pytest.mark.parametrize(
    ("words", "runners"),
    [
        ([], AFFECTED),
        (["--runner", "piecewise"], ["piecewise"]),
    ],
    ids=["without a runner", "with a runner"],
)
def test_a_bug_is_switched_on_in_each_runner_it_can_harm_or_in_the_one_asked_for(
    words: list[str], runners: Sequence[str], tmp_path: Path
) -> None:
    """Nothing is collected but what a clean build must pass, every property of it."""
    done = suite(
        *("--bug", "swa_pad", "--preset", "gpt_oss", "--device", "cpu", "--collect-only", "-q"),
        *(*words, str(ROOT / "properties")),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    collected = re.findall(r"^\S*?(\w+\.py)::(\w+)(?:\[(.*)\])?$", done.stdout, re.M)
    assert {file for file, _, _ in collected} == {"test_clean.py"}
    assert {each.split("-")[0] for _, _, each in collected} == set(runners)
    assert all("-gpt_oss-" in each and "-swa_pad" in each for _, _, each in collected)
    kept = [each for _, test, each in collected if test == "test_a_clean_subject_keeps"]
    shapes = len(DTYPES) * len(PAGE_SIZES)
    assert len(kept) == len(set(kept)) == len(runners) * shapes * len(PROPERTIES)


def test_the_clean_suite_goes_red_on_a_broken_subject_and_tells_how_to_replay_it(
    tmp_path: Path,
) -> None:
    """Two of its properties on both runners, in two workers; one of the two must see the bug."""
    done = suite(
        *("--bug", "swa_pad", "--preset", "gpt_oss", "--device", "cpu", "-n", "2"),
        *("-k", "(kv_parity or log_hygiene) and float32-page1", "--hypothesis-profile", "ci"),
        *("--junitxml", "reports/junit.xml", str(ROOT / "properties")),
        folder=tmp_path,
    )
    assert done.returncode == TESTS_FAILED, done.stdout
    assert "with bug swa_pad switched on: expect red" in done.stdout
    for runner in AFFECTED:
        assert re.search(
            rf"^FAILED .*test_a_clean_subject_keeps\[{runner}-.*kv_parity", done.stdout, re.M
        )
    assert re.search(r"kv_parity: step \d+ of \d+: .* of request \d+", done.stdout)
    assert_only_kv_parity_is_red(tmp_path / "reports" / "junit.xml")
    assert_its_cases_replay(done.stdout, tmp_path)


def assert_only_kv_parity_is_red(junit: Path) -> None:
    """Read two results of each runner; none is of a test that knows nothing of `--bug`."""
    results = ElementTree.parse(junit).getroot().iter("testcase")
    red = {str(each.get("name")): each.find("failure") is not None for each in results}
    assert sorted(red.values()) == [False] * len(AFFECTED) + [True] * len(AFFECTED)
    assert all(name.startswith("test_a_clean_subject_keeps[") for name in red)
    assert all("kv_parity" in name for name, failed in red.items() if failed)


def assert_its_cases_replay(shown: str, folder: Path) -> None:
    """Take each command shown as it stands: it finds the bug again, and nothing is left over."""
    commands = re.findall(r"^replay with: paritybit (replay \S+)$", shown, re.M)
    assert len(commands) == len(AFFECTED)
    paths = [command.split()[1] for command in commands]
    assert sorted(each.name for each in (folder / "reports/out/pytest/cases").iterdir()) == sorted(
        Path(path).name for path in paths
    )
    assert list(folder.glob("reports/out/pytest/worker-*/*")) == []
    trials = [load_case(folder / path).trial for path in paths]
    assert sorted(trial.runner for trial in trials) == sorted(AFFECTED)
    assert all(trial.bugs == ("swa_pad",) for trial in trials)
    for path in paths:
        again = python("-m", "harness", "replay", path, folder=folder)
        assert again.returncode == 1
        assert re.search(r"^step \d+: kv_parity: ", again.stdout, re.M)


def test_conftest_does_not_import_torch() -> None:
    done = python("-c", "import conftest, sys; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_the_controlling_process_never_initialises_cuda(tmp_path: Path) -> None:
    code = (
        "import pytest, sys, torch;"
        "code = pytest.main(sys.argv[1:]);"
        "sys.exit(1 if code else 3 if torch.cuda.is_initialized() else 0)"
    )
    words = ("-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-n", "1", "-q")
    traffic = str(ROOT / "properties" / "test_traffic.py")
    done = python("-c", code, *words, "-k", "order_of_arrival", traffic, folder=tmp_path)
    assert done.returncode == 0, done.stdout


class Asked:
    """What the hooks ask of a pytest configuration: an option, a stash, a worker's input."""

    def __init__(self, device: str, worker_input: Mapping[str, Any] | None = None) -> None:
        self.stash = pytest.Stash()
        self.device = device
        if worker_input is not None:
            self.workerinput = worker_input

    def getoption(self, name: str, default: Any = None) -> Any:
        """Return an option; the profile is given, so that none is loaded here."""
        return {"--device": self.device, "--hypothesis-profile": "given"}.get(name, default)


def asked(device: str, worker_input: Mapping[str, Any] | None = None) -> pytest.Config:
    """Return a configuration of which the hooks use nothing else."""
    return cast(pytest.Config, Asked(device, worker_input))


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver name eight GPUs."""
    monkeypatch.setattr(conftest, "gpu_names", lambda: ["a GPU"] * 8)


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        ("2,5", ["2", "5"]),
        ("0", ["0"]),
        ("", []),
        ("-1", []),
        ("3,99,4", ["3"]),
        ("GPU-1a2b,GPU-3c4d", ["GPU-1a2b", "GPU-3c4d"]),
    ],
)
@pytest.mark.usefixtures("eight_gpus")
def test_the_visible_gpus_are_those_that_the_environment_names(
    named: str, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert conftest.visible_gpus() == seen


def test_the_environment_names_no_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "gpu_names", list)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert conftest.visible_gpus() == []


def listing(text: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a stand-in for subprocess.run that prints `text`."""
    return lambda words, **_: subprocess.CompletedProcess(words, 0, stdout=text, stderr="")


def test_where_the_environment_names_none_the_driver_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    text = "GPU 0: One (UUID: GPU-1)\n  MIG 1g (UUID: MIG-1)\nGPU 1: Two (UUID: GPU-2)\n"
    monkeypatch.setattr(subprocess, "run", listing(text))
    assert conftest.visible_gpus() == ["0", "1"]


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("nvidia-smi"),
        subprocess.CalledProcessError(9, "nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 60),
    ],
    ids=lambda error: type(error).__name__,
)
def test_where_the_driver_cannot_be_asked_there_is_no_gpu(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(subprocess, "run", fail)
    assert conftest.visible_gpus() == []


@pytest.mark.usefixtures("eight_gpus")
def test_auto_takes_cuda_where_a_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert conftest.chosen_device(asked("auto")) == "cuda"
    assert conftest.chosen_device(asked("cuda")) == "cuda"
    assert conftest.chosen_device(asked("cpu")) == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert conftest.chosen_device(asked("auto")) == "cpu"
    with pytest.raises(pytest.UsageError, match="no GPU is visible"):
        conftest.chosen_device(asked("cuda"))


@pytest.mark.usefixtures("eight_gpus")
def test_there_are_as_many_workers_as_gpus_or_else_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert conftest.pytest_xdist_auto_num_workers(asked("cuda")) == 3
    assert conftest.pytest_xdist_auto_num_workers(asked("auto")) == 3
    assert conftest.pytest_xdist_auto_num_workers(asked("cpu")) == 11
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert conftest.pytest_xdist_auto_num_workers(asked("cpu")) == 1


def worker(name: str, device: str) -> pytest.Config:
    """Return the configuration of a worker, as the controlling process hands it down."""
    message = {"workerid": name, "paritybit_device": device, "paritybit_seed": 42}
    return asked("auto", message)


@pytest.mark.parametrize(("name", "gpu"), [("gw0", "2"), ("gw1", "5"), ("gw2", "2"), ("gw11", "5")])
@pytest.mark.usefixtures("eight_gpus")
def test_a_worker_is_pinned_to_its_gpu(
    name: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    config = worker(name, "cuda")
    conftest.pytest_configure(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu
    assert (config.stash[conftest.DEVICE], config.stash[conftest.SEED]) == ("cuda", 42)


@pytest.mark.usefixtures("eight_gpus")
def test_a_worker_on_a_cpu_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    config = worker("gw1", "cpu")
    conftest.pytest_configure(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert config.stash[conftest.DEVICE] == "cpu"


@pytest.mark.usefixtures("eight_gpus")
def test_the_controlling_process_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    config = asked("auto")
    conftest.pytest_configure(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert config.stash[conftest.DEVICE] == "cuda"
