"""What it means that an engine raises while it serves generated requests.

Law: each request that an engine accepts ends, and none ends the engine.

An error is judged only if the engine's own code raised it, directly or in torch or the standard
library, and if a forward of the same kind ended before. A stand-in that cannot do what the engine
asks for is no fault of the engine.
"""

import re
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path

import torch

from paritybit.drive import ENGINES
from paritybit.places import PACKAGE
from paritybit.watch import journal
from paritybit.watch.boundary import LONGEST
from paritybit.watch.checks import engine_error
from paritybit.watch.observations import EngineError
from paritybit.watch.settings import active

SURROUNDINGS = (ImportError, MemoryError, NotImplementedError, OSError, torch.OutOfMemoryError)
"""Errors that say something of the machine, or of what is installed on it."""

SAYS = re.compile(r"cuda|cublas|cudnn|nccl|not implemented for|could not run", re.IGNORECASE)
"""What the message of such an error may say."""

PASS_ON = tuple(
    str(Path(path).resolve())
    for path in (Path(torch.__file__).parent, sysconfig.get_paths()["stdlib"])
)
"""Where code lies that only raises because of what it was given."""

FAILED = "failed "
"""What a count of the journal begins with that counts forwards that raised."""


class EngineFailedError(BaseException):
    """The engine raised. It holds what. An engine's own handlers let it pass."""


class StalledError(EngineFailedError):
    """Requests wait, and the engine runs none of them."""


def judge_failure(failed: BaseException) -> None:
    """Write a finding if an error that ended the engine is its own fault."""
    lines, settings = journal.of_process(), active()
    if lines is None or settings is None:
        return
    name = engine_error.CHECK.name
    checked = settings.checks is None or name in settings.checks
    judged = any(key.startswith(name) for key in lines.findings)
    found = fault_of(failed.__cause__ or failed, lines.counts)
    if checked and not judged and found is not None:
        for finding in engine_error.judge(found):
            lines.finding(finding)


def fault_of(error: BaseException, counts: Mapping[str, int]) -> EngineError | None:
    """Return what an error means, None if it is no fault of the engine's.

    `counts` are those of the journal.
    """
    forwards, text = counts.get("forwards", 0), " ".join(str(error).split())[:LONGEST]
    if isinstance(error, StalledError):
        return EngineError(forwards, "the engine stalls", text, None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not passes_on(frame.filename)]
    engine = engine_path(own[-1].filename) if own else None
    environment = isinstance(error, SURROUNDINGS) or SAYS.search(str(error)) is not None
    if engine is None or environment or not isinstance(error, Exception):
        return None
    if not forwards:
        captures = any(frame.name.startswith("capture") for frame in own)
        bounds = any(words in str(error).lower() for words in engine_error.INDEX_ERRORS)
        if not (captures and isinstance(error, IndexError) and bounds):
            return None
        what = "a capture accesses memory out of bounds"
    elif any(
        fails >= counts.get(name.removeprefix(FAILED), 0)
        for name, fails in counts.items()
        if name.startswith(FAILED)
    ):
        return None
    else:
        what = f"{type(error).__name__} in {own[-1].name} ends the engine"
    return EngineError(forwards, what, text, f"{engine}:{own[-1].lineno}")


def passes_on(path: str) -> bool:
    """Whether a file is one of torch or of the standard library."""
    if path.startswith("<"):
        return True
    torch_s, standard = PASS_ON
    real = str(Path(path).resolve())
    installed = "site-packages" in real or "dist-packages" in real
    return real.startswith(torch_s) or (real.startswith(standard) and not installed)


def engine_path(path: str) -> str | None:
    """Return a path from an engine's top-level package on; None for a file of no engine."""
    if Path(path).resolve().is_relative_to(PACKAGE):  # Downloads lie in a folder of that name, too.
        return None
    parts = Path(path).parts
    places = [parts.index(name) for name in ENGINES if name in parts]
    return "/".join(parts[max(places) :]) if places else None
