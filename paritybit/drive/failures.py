"""Judges errors that an engine raises while it serves generated requests.

Law: each request that an engine accepts ends, and none ends the engine.

An error is judged only if the engine's own code raised it, directly or in torch or the standard
library, and if a forward of the same kind has ended before. It is not the engine's fault if a
stand-in lacks something that the engine needs.
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
"""Errors that concern the machine, or the packages that are installed on it."""

PARTS = (torch.cuda.streams.Stream, torch.cuda.streams.Event, torch.cuda.graphs.CUDAGraph)
"""Parts of CUDA that something else stands in for on a CPU."""

SAYS = re.compile(r"cuda|cublas|cudnn|nccl|not implemented for|could not run", re.IGNORECASE)
"""Matches the messages of other errors of this kind."""

PASS_ON = tuple(
    str(Path(path).resolve())
    for path in (Path(torch.__file__).parent, sysconfig.get_paths()["stdlib"])
)
"""Folders with code that raises errors because of its arguments."""

FAILED = "failed "
"""The prefix of the counts of forwards that raised an error."""


class EngineFailedError(BaseException):
    """The engine raised an error. The engine's own handlers do not catch this BaseException."""


class StalledError(EngineFailedError):
    """Requests wait, but the engine runs none of them."""


def judge_failure(failed: BaseException) -> None:
    """Write a finding if an error that ended the engine is the engine's fault."""
    lines, settings = journal.of_process(), active()
    if lines is None or settings is None:
        return
    lines.settle()
    name = engine_error.CHECK.name
    checked = settings.checks is None or name in settings.checks
    judged = any(key.startswith(name) for key in lines.findings)
    found = fault_of(failed.__cause__ or failed, lines.counts)
    if checked and not judged and found is not None:
        for finding in engine_error.judge(found):
            lines.finding(finding)


def fault_of(error: BaseException, counts: Mapping[str, int]) -> EngineError | None:
    """Return the meaning of an error, or None if it is not the engine's fault.

    `counts` are those of the journal.
    """
    forwards, text = counts.get("forwards", 0), " ".join(str(error).split())[:LONGEST]
    if isinstance(error, StalledError):
        return EngineError(forwards, "the engine stalls", text, None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not passes_on(frame.filename)]
    engine = engine_path(own[-1].filename) if own else None
    environment = isinstance(error, SURROUNDINGS) or SAYS.search(str(error)) is not None
    environment |= isinstance(error, AttributeError) and incomplete(error)
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


def incomplete(error: AttributeError) -> bool:
    """Return whether what stands in for a part of CUDA lacks an attribute of that part."""
    given, name = error.obj if isinstance(error.obj, type) else type(error.obj), error.name or ""
    return any(hasattr(part, name) and part.__name__ in given.__name__ for part in PARTS)


def passes_on(path: str) -> bool:
    """Return whether a file belongs to torch or to the standard library."""
    if path.startswith("<"):
        return True
    torch_s, standard = PASS_ON
    real = str(Path(path).resolve())
    installed = "site-packages" in real or "dist-packages" in real
    return real.startswith(torch_s) or (real.startswith(standard) and not installed)


def engine_path(path: str) -> str | None:
    """Return a path relative to the parent of an engine's package, or None for other files."""
    if Path(path).resolve().is_relative_to(PACKAGE):  # Downloads have the name in their path, too.
        return None
    parts = Path(path).parts
    places = [parts.index(name) for name in ENGINES if name in parts]
    return "/".join(parts[max(places) :]) if places else None
