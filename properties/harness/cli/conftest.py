"""What every test of the command line may ask for."""

import re
from pathlib import Path
from typing import Any

import pytest

from paritybit.__main__ import main
from properties.support.fixtures import eight_gpus
from properties.support.harness.command_line import write_swa_pad_case

__all__ = ["eight_gpus"]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command that must fail with an exit code; return the one sentence it says."""

    def run(code: int, *words: str | Path) -> str:
        assert main([str(word) for word in words]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert re.fullmatch(r"paritybit: [^\n]+\n", captured.err)
        return captured.err

    return run


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    """A case of swa_pad that differs at step 3."""
    path = tmp_path / "case.json"
    write_swa_pad_case(path)
    return path
