"""A process that runs with the stand-ins of an engine, and those that it starts."""

import os
import subprocess
from pathlib import Path

import pytest

from paritybit.drive.on_cpu import main
from properties.support.places import ROOT
from properties.support.quick import quick

SAYS = """
import os, subprocess, sys, torch
print(os.environ["TEST_DEVICE"], torch.accelerator.get_memory_info(), flush=True)
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode + 3)
"""


def test_each_process_has_the_stand_ins(tmp_path: Path) -> None:
    file = tmp_path / "says.py"
    file.write_text(SAYS, encoding="utf-8")
    done = subprocess.run(
        quick("-m", "paritybit.drive.on_cpu", "vllm", file),
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stdout == "cpu (0, 0)\ncpu (0, 0)\n"


@pytest.mark.parametrize("words", [[], ["vllm"], ["nothing", "file.py"]])
def test_wrong_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "usage: python -m paritybit.drive.on_cpu sglang|" in capsys.readouterr().err
