"""Exported tests fail on faulty engines and pass on fixed ones; the examples run as they stand.

The tests are skipped unless releases are asked for; each takes a minute or more.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paritybit.drive.engines import BY_NAME
from paritybit.drive.models import GEMMA4
from properties.export.scripts import case_of
from properties.planting.faults import FOLDER, Edit, Fault, plant, read
from properties.support.examples import examples
from properties.support.releases import package_of

CASES = Path(__file__).parent / "cases"

SGLANG = Fault(
    name="swa_pad fixed",
    engine="sglang==0.5.11",
    why="The padded tail is reset: the release itself has the fault.",
    edits=(
        Edit(
            "sglang/srt/model_executor/cuda_graph_runner.py",
            "            dsts.append(self.out_cache_loc_swa[:raw_num_token])\n",
            "            self.out_cache_loc_swa.zero_()\n"
            "            dsts.append(self.out_cache_loc_swa[:raw_num_token])\n",
        ),
    ),
)


def planted(engine: str, name: str) -> Fault:
    """Return a fault of the tables."""
    return next(fault for fault in read(FOLDER / f"{engine}.toml") if fault.name == name)


def engines(engine: str, folder: Path) -> tuple[Path, Path]:
    """Return the folders of a faulty and of a right engine."""
    fault = {
        "sglang": lambda: SGLANG,
        "vllm": lambda: planted("vllm", "moved-row-loses-its-last-block"),
        "transformers": lambda: planted("transformers", "hash-of-half-a-block"),
    }[engine]()
    source = package_of(fault.engine.partition("==")[2], engine).parent
    plant(fault, source, folder / "changed")
    pair = (source, folder / "changed")
    return pair if engine == "sglang" else pair[::-1]


def run_example(engine: str, spec: str, folder: Path) -> tuple[int, str]:
    """Run the example of an engine with a release or a folder; return how it ends, and its text."""
    (code,) = (code for name, code in examples() if name == engine)
    file = folder / "test_example.py"
    file.write_text(code, encoding="utf-8")
    starter = BY_NAME[engine].starter
    _, variables = starter.playing(starter.prepare(spec), case_of(engine).script, ())
    variables |= {"MODEL": str(GEMMA4.write(folder))}
    words = () if engine == "transformers" else ("-m", "paritybit.drive.on_cpu", engine)
    command = [sys.executable, *words, "-m", "pytest", "-q", "-p", "no:cacheprovider", file.name]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("engine", "version"),
    [("transformers", "5.24.0"), ("vllm", "0.33.0"), ("sglang", "0.5.13"), ("sglang", "0.5.23")],
)
def test_the_example_of_an_engine_runs_as_it_stands(
    engine: str, version: str, tmp_path: Path
) -> None:
    package_of(version, engine)
    code, text = run_example(engine, f"{engine}=={version}", tmp_path)
    assert code == 0, text


@pytest.mark.parametrize(
    ("engine", "name", "check"),
    [
        ("transformers", "last-page-read-from-the-one-before", "wrong list"),
        ("vllm", "window-is-a-block-shorter", "freed in use"),
        ("sglang", "window-list-shifted-by-one", "wrong list"),
    ],
)
def test_the_example_of_an_engine_fails_with_a_fault(
    engine: str, name: str, check: str, tmp_path: Path
) -> None:
    fault = planted(engine, name)
    changed = tmp_path / "changed"
    plant(fault, package_of(fault.engine.partition("==")[2], engine).parent, changed)
    code, text = run_example(engine, str(changed), tmp_path)
    assert code == 1, text
    assert f"ERROR: paritybit: {check}: " in text
