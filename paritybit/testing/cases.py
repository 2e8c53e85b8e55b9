"""Serves a case of `paritybit watch` to an engine again, in a test."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from paritybit.testing.outcome import UndecidedError

NAME = "case.json"


def check_case(case: Mapping[str, Any], engine: str | PathLike[str]) -> None:
    """Serve the requests of a case to an engine, and raise AssertionError if its finding appears.

    `case` is the JSON data of a case. `engine` is a folder with the engine's source, or a release
    such as `sglang==0.5.11`. The engine runs in its own process. Other findings are ignored.

    Raises AssertionError with the output of `paritybit replay`, and UndecidedError if the engine
    could not be served or the case is malformed.
    """
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory(prefix="paritybit-") as folder:
        file = Path(folder) / NAME
        file.write_text(json.dumps(case), encoding="utf-8")
        words = [sys.executable, "-m", "paritybit", "replay", str(file), "--engine", str(engine)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    text = f"{done.stdout}\n{done.stderr}".strip()
    if f"{NAME}: reproduced" in text:
        raise AssertionError(text)
    if f"{NAME}: not reproduced" not in text:
        raise UndecidedError(text)
