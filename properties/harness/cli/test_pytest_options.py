"""The suite's own pytest options: a real pytest in a process of its own, and the hooks by hand."""

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
import torch
from paritybit.harness.checks.expectations import affected_runners
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import DTYPES
from paritybit.harness.machine import mps
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import load
from paritybit.subjects.bugs.catalogue import BUGS

import conftest
from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, FINDING, python
from properties.support.harness.fake_gpus import FakeGpus
from properties.support.places import ROOT
from properties.support.quick import quick_worker
from properties.support.trials import PAGE_SIZES

PASSED, TESTS_FAILED, USAGE_ERROR = 0, 1, 4
SUITE = ("-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
NO_TEST_STANDS_HERE = str(ROOT / "properties" / "support")
(CLEAN,) = (str(path) for path in (ROOT / "properties").rglob("test_clean.py"))

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


def suite(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run this project's pytest; its artifacts go below `folder`."""
    return python("-m", "pytest", *SUITE, *words, folder=folder)


def test_a_name_that_this_build_lacks_is_a_usage_error() -> None:
    done = suite("--bug", "nonsense")
    assert done.returncode == USAGE_ERROR
    assert "unknown bug 'nonsense'; the nearest names are " in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "passed" not in done.stdout


@without_gpu
def test_cuda_without_a_gpu_is_a_usage_error_and_never_a_skip() -> None:
    done = suite("--device", "cuda", "-n", "2")
    assert done.returncode == USAGE_ERROR
    assert "--device cuda needs a GPU, but none is visible" in done.stderr
    assert "skipped" not in done.stdout


@pytest.mark.parametrize(
    ("profile", "seed", "schedules"),
    [("ci", r"0", "4"), ("nightly", r"\d+", "250")],
)
def test_the_header_names_device_seed_and_schedules(
    profile: str, seed: str, schedules: str, tmp_path: Path
) -> None:
    """Only the ci profile is bound to a seed."""
    words = ("--hypothesis-profile", profile, "--device", "cpu", "--collect-only")
    done = suite(*words, NO_TEST_STANDS_HERE, folder=tmp_path)
    header = rf"^paritybit: device cpu, seed {seed}, {schedules} schedules per trial$"
    assert re.search(header, done.stdout, re.M)


AFFECTED = affected_runners(BUGS["swa_pad"])
"""The runners that a clean suite with this bug is red on."""


def test_with_a_bug_nothing_is_collected_but_what_a_clean_build_must_pass(tmp_path: Path) -> None:
    """Every property of it; the other file named here is left out."""
    words = ("--bug", "swa_pad", "--preset", "gpt_oss", "--device", "cpu", "--collect-only", "-q")
    done = suite(*words, CLEAN, __file__, folder=tmp_path)
    assert done.returncode == PASSED, done.stdout
    collected = re.findall(r"^\S*?(\w+\.py)::(\w+)(?:\[(.*)\])?$", done.stdout, re.M)
    assert {file for file, _, _ in collected} == {"test_clean.py"}
    assert {trial.split("-")[0] for _, _, trial in collected} == set(AFFECTED)
    assert all("-gpt_oss-" in trial and "-swa_pad" in trial for _, _, trial in collected)
    kept = [trial for _, test, trial in collected if test == "test_a_clean_subject_keeps"]
    shapes = len(DTYPES) * len(PAGE_SIZES)
    assert len(kept) == len(set(kept)) == len(AFFECTED) * shapes * len(PROPERTIES)


WITHOUT_CUDA = (
    "import pytest, sys, torch;"
    "code = pytest.main(sys.argv[1:]);"
    "sys.exit(3 if torch.cuda.is_initialized() else code)"
)
"""Runs pytest, and exits with 3 if the controlling process initialised CUDA."""


@pytest.mark.long
def test_the_clean_suite_goes_red_on_a_broken_subject_and_says_how_to_replay_it(
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two of its properties on one runner, in a worker; one of the two must see the bug.

    In a job of GitHub's that one is annotated. The process that controls the worker leaves CUDA
    alone.
    """
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = python(
        *("-c", WITHOUT_CUDA, *SUITE, *quick_worker(), "--runner", "decode"),
        *("--bug", "swa_pad", "--preset", "gpt_oss", "--device", device),
        *("-k", "(kv_parity or log_hygiene) and float32-page1", "--hypothesis-profile", "ci"),
        *("--junitxml", "reports/junit.xml", CLEAN),
        folder=tmp_path,
    )
    assert done.returncode == TESTS_FAILED, done.stdout
    assert "bug swa_pad switched on: tests are expected to fail" in done.stdout
    failed = r"^FAILED .*test_a_clean_subject_keeps\[decode-.*kv_parity"
    assert re.search(failed, done.stdout, re.M)
    annotated = (
        r"^::error file=\S*test_clean\.py,line=\d+::test_a_clean_subject_keeps\[decode-.*kv_"
    )
    assert len(re.findall(annotated, done.stdout, re.M)) == 1
    assert re.search(r"kv_parity: step \d+ of \d+: .* of request \d+", done.stdout)
    assert_only_kv_parity_is_red(tmp_path / "reports" / "junit.xml")
    monkeypatch.chdir(tmp_path)
    assert_its_case_replays(done.stdout, tmp_path)
    assert re.search(r"^step \d+: kv_parity: ", capsys.readouterr().out, re.M)


def assert_only_kv_parity_is_red(junit: Path) -> None:
    """Read two results; none is of a test that knows nothing of `--bug`."""
    results = ElementTree.parse(junit).getroot().iter("testcase")
    red = {str(result.get("name")): result.find("failure") is not None for result in results}
    assert sorted(red.values()) == [False, True]
    assert all(name.startswith("test_a_clean_subject_keeps[") for name in red)
    assert all("kv_parity" in name for name, failed in red.items() if failed)


def assert_its_case_replays(shown: str, folder: Path) -> None:
    """Take the command shown as it stands: it finds the bug again, and nothing is left over."""
    (command,) = re.findall(r"^to replay: paritybit (replay \S+)$", shown, re.M)
    path = folder / command.split()[1]
    assert list((folder / "paritybit-out/pytest/cases").iterdir()) == [path]
    assert list(folder.glob("paritybit-out/pytest/worker-*/*")) == []
    trial = load(path, Case).trial
    assert (trial.runner, trial.bugs) == ("decode", ("swa_pad",))
    assert main(command.split()) == FINDING


@pytest.fixture
def old_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A failing case of the run before, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / conftest.ARTIFACTS / "cases" / "old.json"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def executing(config: pytest.Config, *, collected: int) -> None:
    """Begin to run what a process without workers has collected."""
    session = AskedSession({}, config)
    session.testscollected = collected
    conftest.pytest_runtestloop(cast(pytest.Session, session))


def test_only_a_run_that_executes_tests_clears_the_failing_cases(old_case: Path) -> None:
    """Once, and not in a worker; with workers, when the first has something to run."""
    executing(asked("cpu", collect_only=True), collected=3)
    executing(asked("cpu"), collected=0)
    executing(asked("cpu", {"workerid": "gw0"}), collected=3)
    node = cast(Any, AskedSession({}, asked("cpu")))
    conftest.pytest_xdist_node_collection_finished(node, [])
    assert old_case.exists()
    conftest.pytest_xdist_node_collection_finished(node, ["a test"])
    assert not old_case.exists()
    old_case.parent.mkdir(parents=True)
    old_case.touch()
    conftest.pytest_xdist_node_collection_finished(node, ["a test"])
    assert old_case.exists()
    executing(asked("cpu"), collected=3)
    assert not old_case.exists()


TRIAL = "decode-gpt_oss-memo-float32-page4"
SCOPES = {
    f"properties/verdicts/test_clean.py::test_a[{TRIAL}-kv_parity]": TRIAL,
    f"properties/test_clean.py::test_b[{TRIAL}]": TRIAL,
    "properties/engines/test_release.py::test_c[1]": "properties/engines/test_release.py",
    **{f"{place}::test_d[1]": f"{place}::test_d[1]" for place in conftest.ALONE},
}
"""Tests, and what those have in common that go to one worker."""


@pytest.mark.parametrize("test", SCOPES)
def test_what_shares_a_trial_or_a_file_goes_to_one_worker(test: str) -> None:
    assert conftest.shared_scope(test) == SCOPES[test]


def test_a_worker_starts_with_what_takes_long_and_then_with_the_most_tests() -> None:
    place = conftest.ALONE[0]
    names = [
        f"{place}::test_a",
        "few.py::test_b",
        "many.py::test_c",
        f"{place}::test_d",
        "many.py::",
    ]
    long = {names[3]}
    items: Any = [
        SimpleNamespace(nodeid=name, get_closest_marker=lambda _, name=name: name in long)
        for name in names
    ]
    found = [item.nodeid for item in conftest.longest_first(items)]
    assert found == [names[place] for place in (3, 2, 4, 0, 1)]


@pytest.mark.parametrize("place", conftest.ALONE)
def test_where_tests_share_nothing_there_are_tests(place: str) -> None:
    """A file or a folder that moved would be played by one worker again, unseen."""
    assert (ROOT / place).exists()


class Asked:
    """What the hooks ask of a pytest configuration: an option, a stash, a worker's input."""

    def __init__(
        self,
        device: str,
        worker_input: Mapping[str, Any] | None,
        *,
        collect_only: bool,
        mps: bool,
    ) -> None:
        self.stash = pytest.Stash()
        self.options = {"--device": device, "--hypothesis-profile": "given", "--mps": mps}
        self.option = SimpleNamespace(collectonly=collect_only)
        if worker_input is not None:
            self.workerinput = worker_input

    def getoption(self, name: str, default: Any = None) -> Any:
        """Return an option; the profile is given, so that none is loaded here."""
        return self.options.get(name, default)


def asked(
    device: str,
    worker_input: Mapping[str, Any] | None = None,
    *,
    collect_only: bool = False,
    mps: bool = False,
) -> pytest.Config:
    """Return a configuration of which the hooks use nothing else."""
    return cast(pytest.Config, Asked(device, worker_input, collect_only=collect_only, mps=mps))


class AskedSession:
    """What the hooks ask of a session: the options named, and how many tests were collected."""

    def __init__(self, names: Mapping[str, str], config: Any = None) -> None:
        self.names = names
        self.config = config or self
        self.testscollected = 0

    def getoption(self, name: str) -> str | None:
        """Return an option."""
        return self.names.get(name.removeprefix("--"))


@pytest.mark.usefixtures("eight_gpus")
def test_auto_takes_cuda_where_a_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert conftest.chosen_device(asked("auto")) == "cuda"
    assert conftest.chosen_device(asked("cuda")) == "cuda"
    assert conftest.chosen_device(asked("cpu")) == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert conftest.chosen_device(asked("auto")) == "cpu"
    with pytest.raises(pytest.UsageError, match="needs a GPU, but none is visible"):
        conftest.chosen_device(asked("cuda"))


@pytest.mark.usefixtures("eight_gpus")
def test_there_are_as_many_workers_as_do_most_where_the_tests_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the device asked for, the GPUs that are visible, and whether MPS is there or asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setattr("paritybit.harness.machine.workers.cores", lambda: 16)
    monkeypatch.setattr(mps, "answers", lambda: False)
    auto = conftest.pytest_xdist_auto_num_workers
    assert [auto(asked("cuda")), auto(asked("auto")), auto(asked("cpu"))] == [8, 8, 16]
    assert auto(asked("cuda", mps=True)) == 15
    monkeypatch.setattr(mps, "answers", lambda: True)
    assert [auto(asked("cuda")), auto(asked("cpu"))] == [15, 16]


def test_a_failed_test_is_annotated_at_its_line_whatever_it_says() -> None:
    """On one line. What has no line of its own stands at the first, what has no crash as it is."""
    crash = SimpleNamespace(message="ValueError: 50 %\nmore")
    failed = SimpleNamespace(
        location=("a/test_it.py", 2, "test_it"), longrepr=SimpleNamespace(reprcrash=crash)
    )
    broken = SimpleNamespace(
        location=("a/test_it.py", None, "module"), longrepr="text", longreprtext="no import"
    )
    assert [conftest.annotation(cast(Any, report)) for report in (failed, broken)] == [
        "::error file=a/test_it.py,line=3::test_it: ValueError: 50 %25%0Amore",
        "::error file=a/test_it.py,line=1::module: no import",
    ]


WHERE_A_WORKER_RUNS = """
import os, pathlib, sys

TORCH = "torch" in sys.modules
GPU, PIPE = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_MPS_PIPE_DIRECTORY"]

def test_where():
    assert not TORCH
    assert (pathlib.Path(PIPE) / "control").exists()
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(GPU)
"""
"""A test that writes down which GPU its worker was given, and that torch had none before."""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """NVIDIA's programs on the PATH: two GPUs."""
    found = FakeGpus.made(tmp_path / "bin", gpus=2)
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_under_mps_a_worker_finds_the_daemon_which_is_stopped_at_the_end(
    two_gpus: FakeGpus, tmp_path: Path
) -> None:
    """The summary says which way they ran, and how long."""
    (tmp_path / "test_it.py").write_text(WHERE_A_WORKER_RUNS)
    shared, started = ("-p", "conftest", "--device", "cuda", "--mps"), time.monotonic()
    done = suite(*shared, "-n", "1", "test_it.py", folder=tmp_path)
    assert done.returncode == PASSED, done.stdout + done.stderr
    seen = {path.name: path.read_text() for path in tmp_path.glob("gw*")}
    assert seen == {"gw0": "0"}
    summary = json.loads((tmp_path / conftest.ARTIFACTS / "summary.json").read_text())
    assert summary["environment"]["processes"] == 1
    assert 0 < summary["figures"]["seconds"] < time.monotonic() - started
    assert two_gpus.gone()


def test_where_no_mps_daemon_can_start_pytest_says_why_and_has_no_verdict(
    two_gpus: FakeGpus,
) -> None:
    (two_gpus.folder / "refuses").touch()
    config = asked("cuda", mps=True)
    with pytest.raises(pytest.exit.Exception) as ended:
        conftest.pytest_configure(config)
    assert ended.value.returncode == CANNOT_RUN
    assert str(ended.value).startswith("--mps cannot start an MPS daemon: nvidia-cuda-mps-control")


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
