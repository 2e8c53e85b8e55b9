"""Exported tests fail on faulty engines and pass on fixed ones; the examples run as they stand.

The tests are skipped unless releases are asked for; each takes a minute or more.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paritybit.harness.cli.exit_codes import CANNOT_RUN, OK

from paritybit.__main__ import main
from paritybit.drive.engines import BY_NAME
from paritybit.drive.models import GEMMA4
from properties.export.scripts import case_of
from properties.sanitizer.planted.faults import TABLE, Fault, read
from properties.sanitizer.planted.plant import plant
from properties.support.examples import examples
from properties.support.releases import package_of

CASES = Path(__file__).parent / "cases"

SGLANG = Fault(
    name="swa_pad fixed",
    family="fix",
    release="0.5.11",
    file="sglang/srt/model_executor/cuda_graph_runner.py",
    old="            dsts.append(self.out_cache_loc_swa[:raw_num_token])\n",
    new="            self.out_cache_loc_swa.zero_()\n"
    "            dsts.append(self.out_cache_loc_swa[:raw_num_token])\n",
    why="The padded tail is reset: the release itself has the fault.",
)


def planted(engine: str, name: str) -> Fault:
    """Return a fault of the tables."""
    table = read(TABLE.with_name(f"faults-{engine}.toml"))
    return next(fault for fault in table if fault.name == name)


def engines(engine: str, folder: Path) -> tuple[Path, Path]:
    """Return the folders of a faulty and of a right engine."""
    fault = {
        "sglang": lambda: SGLANG,
        "vllm": lambda: planted("vllm", "moved-row-loses-its-last-block"),
        "transformers": lambda: planted("transformers", "hash-of-half-a-block"),
    }[engine]()
    source = package_of(fault.release, engine).parent
    plant(fault, source, folder / "changed")
    pair = (source, folder / "changed")
    return pair if engine == "sglang" else pair[::-1]


@pytest.mark.parametrize("form", [(), ("--with-paritybit",)], ids=["standalone", "sanitizer"])
@pytest.mark.parametrize("engine", BY_NAME)
def test_an_exported_test_is_red_on_the_fault_and_green_without_it(
    engine: str, form: tuple[str, ...], tmp_path: Path
) -> None:
    faulty, right = engines(engine, tmp_path)
    out = tmp_path / "test_exported.py"
    words = ("export-test", str(CASES / f"{engine}.json"), "--out", str(out), *form, "--engine")
    assert main([*words, str(faulty)]) == OK
    assert len(out.read_text(encoding="utf-8").splitlines()) <= 80
    assert main([*words, str(right)]) == CANNOT_RUN


@pytest.mark.parametrize(
    ("engine", "version", "words"),
    [
        ("transformers", "5.24.0", ()),
        ("vllm", "0.33.0", ("-m", "paritybit.drive.on_cpu", "vllm")),
    ],
)
def test_the_example_of_an_engine_runs_as_it_stands(
    engine: str, version: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    package_of(version, engine)
    (code,) = (code for name, code in examples() if name == engine)
    file = tmp_path / "test_example.py"
    file.write_text(code, encoding="utf-8")
    starter = BY_NAME[engine].starter
    prepared = starter.prepare(f"{engine}=={version}")
    _, variables = starter.playing(prepared, case_of(engine).script, ())
    variables |= {"MODEL": str(GEMMA4.write(tmp_path))}
    command = [sys.executable, *words, "-m", "pytest", "-q", "-p", "no:cacheprovider", file.name]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **variables}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
