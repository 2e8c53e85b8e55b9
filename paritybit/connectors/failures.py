"""Judges errors that end an engine, in the engine's process.

Law: each request that an engine accepts ends, and none ends the engine. An error is judged only if
the engine's own code raised it, directly or in torch or the standard library, after a forward of
the same kind. Before the first forward, only captures and the checks of an idle engine are judged,
because another error may come from arguments or from a stub of a device. A missing device, driver,
library or replacement is not the engine's fault.
"""

import functools
import re
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import FrameType, ModuleType

import torch

from paritybit.places import PACKAGE
from paritybit.watch import fills
from paritybit.watch.attach import connectors
from paritybit.watch.boundary import LONGEST
from paritybit.watch.checks import engine_error
from paritybit.watch.journal import Journal
from paritybit.watch.observations import EngineError
from paritybit.watch.settings import Settings
from paritybit.watch.stacks import Stack, engine_file, line_of, wraps

SURROUNDINGS = (
    *(ImportError, MemoryError, NotImplementedError, OSError, EOFError),
    *(torch.OutOfMemoryError, getattr(torch.distributed, "DistError", torch.OutOfMemoryError)),
)
"""Errors that concern the machine, other processes or installed packages."""

ACCELERATOR: type[BaseException] = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)
"""torch's class for errors of a device. Older releases raise a RuntimeError."""

COMPILERS = ("torch._dynamo.", "torch._inductor.")

DEVICE_CODE = ("cuda", "accelerator", "xpu", "_ops.py", "_utils.py")
"""Parts of torch that raise an error if the device or a library of ops is missing."""

PARTS = (torch.cuda.streams.Stream, torch.cuda.streams.Event, torch.cuda.graphs.CUDAGraph)
"""Parts of CUDA that have a stand-in on a CPU, which may be an engine's own class."""

RUNTIME = re.compile(
    r"\b(cuda|hip)( driver| runtime)? error\b|\bcuda_error_|triton error \["
    r"|\b(cublas|cudnn|cusolver|cusparse)_status_|\b(cublas|cudnn|nccl|rccl) error\b"
    r"|\bgloo/|connection (closed|reset) by peer",  # Another rank has ended.
    re.IGNORECASE,
)
"""Matches an error of the runtime or of a library of a device, or of a connection of ranks."""

FAULTS = re.compile(
    r"illegal memory access|device-side assert triggered|misaligned address|illegal instruction"
    r"|invalid program counter|operation not supported on global/shared address space"
    r"|unspecified launch failure|hardware stack error"
    r"|cuda_error_(illegal|misaligned|assert|launch_failed|hardware_stack|invalid_pc)",
    re.IGNORECASE,
)
"""Matches what a runtime returns if a kernel has failed, which no missing part causes."""

RANGE = re.compile("|".join(map(re.escape, engine_error.INDEX_ERRORS)), re.IGNORECASE)
"""Matches torch's messages for an index out of bounds."""

MISSING = re.compile(
    r"not implemented for|could not run|dummy base class"
    r"|not (compiled|linked|built|supported|available|installed|found)\b|unavailable|unsupported"
    r"|doesn't support|none is available"
    r"|\b(requires?|needs?|only) [\w ]*\b(cuda|gpus?|driver)\b"
    r"|\bno (cuda.(gpus|capable)|nvidia|gpu)",
    re.IGNORECASE,
)
DEVICE = re.compile(
    r"cuda|gpu|nvidia|nccl|\bhip\b|driver|backend|accelerator|dummy base class"
    r"|not implemented for|could not run",
    re.IGNORECASE,
)
"""A message that both match reports a missing device, or a missing operation on it."""

SIGNATURE = re.compile(r"\(\) (got|missing|takes) ")
"""Matches the message for a call that does not fit a function, maybe one of paritybit."""

PASS_ON = tuple(
    str(Path(path).resolve())
    for path in (Path(torch.__file__).parent, sysconfig.get_paths()["stdlib"])
)
"""Folders with code that raises errors because of its arguments."""

FAILED = "failed "
"""The prefix of the counts of forwards that raised an error."""

OUT_OF_BOUNDS = "a forward pass accesses memory out of bounds"

CAPTURED = "captured at "
"""The prefix of a note with the line at which a graph captured what raised an error."""

LAUNCHES = "/triton/runtime/"
"""A part of the path of what launches a kernel, which is interpreted on a CPU."""

Frame = tuple[FrameType, int]
"""A frame of a traceback and its line."""


def judge(error: BaseException, lines: Journal, settings: Settings) -> None:
    """Write a finding if an error that ended the engine is the engine's fault."""
    found = fault_of(error, lines.counts)
    if found is not None:
        report(found, lines, settings)


def report(found: EngineError, lines: Journal, settings: Settings) -> None:
    """Write the finding for the first error of a process, unless the check is off."""
    lines.settle()
    name = engine_error.CHECK.name
    checked = settings.checks is None or name in settings.checks
    if checked and not any(key.startswith(name) for key in lines.findings):
        for finding in engine_error.judge(found):
            lines.finding(finding)


def fault_of(error: BaseException, counts: Mapping[str, int]) -> EngineError | None:
    """Return the meaning of an error, or None if it is not the engine's fault."""
    forwards, text = counts.get("forwards", 0), " ".join(str(error).split())[:LONGEST]
    frames = [one for one in frames_of(error) if not passes_on(one[0].f_code.co_filename)]
    mine = [frame for frame in frames if of_engine(frame)]
    if not mine or not isinstance(error, Exception):
        return None
    chain = tuple(causes(error))
    devices = (one for one in chain if isinstance(one, ACCELERATOR) or RUNTIME.search(str(one)))
    if any(FAULTS.search(str(one)) for one in devices):
        # The kernel was launched earlier, so the line that raised is not the cause.
        text = f"{text} (noticed at {shown(mine[-1])})"
        return EngineError(forwards, OUT_OF_BOUNDS, text)
    if any(surroundings(one) for one in chain):
        return None
    what = meaning(error, mine, counts)
    if not of_engine(frames[-1]):
        # What stands in for a kernel or a graph gets its indices from the engine.
        path = Path(frames[-1][0].f_code.co_filename).resolve()
        stands_in = any(path.is_relative_to(PACKAGE / part) for part in ("drive", "engines"))
        stands_in |= LAUNCHES in path.as_posix()
        what = OUT_OF_BOUNDS if what and stands_in and RANGE.search(str(error)) else None
    if what is None:
        return None
    line, lines = shown(blamed(mine)), list(map(shown, reversed(mine)))
    for note in getattr(error, "__notes__", ()):
        if note.startswith(CAPTURED):  # The line that replays a graph says nothing of it.
            lines, line = [note.removeprefix(CAPTURED), line], note.removeprefix(CAPTURED)
    return EngineError(forwards, what, text, Stack(tuple(lines), lines.index(line)))


def meaning(error: Exception, frames: list[Frame], counts: Mapping[str, int]) -> str | None:
    """Return the meaning of an error that the engine raised, or None if it is not judged yet."""
    if not counts.get("forwards"):
        names = [frame.f_code.co_name for frame, _ in frames]
        checks = isinstance(error, (AssertionError, ValueError)) and CHECKERS.match(names[-1])
        if checks and any(map(IDLE.search, names)):
            return f"a check of the engine fails before it has served a request: {names[-1]}"
        captures = any(name.startswith("capture") for name in names)
        judged = captures and isinstance(error, IndexError) and RANGE.search(str(error))
        return "a capture accesses memory out of bounds" if judged else None
    fails_always = any(
        fails >= counts.get(name.removeprefix(FAILED), 0)
        for name, fails in counts.items()
        if name.startswith(FAILED)
    )
    if fails_always:
        return None
    return f"{type(error).__name__} in {blamed(frames)[0].f_code.co_name} ends the engine"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then the errors that it was raised for."""
    seen = set[int]()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def surroundings(error: BaseException) -> bool:
    """Return whether a missing or failed part of the machine causes an error."""
    if isinstance(error, (*SURROUNDINGS, ACCELERATOR)):
        return True
    if type(error).__module__.startswith(COMPILERS) or RUNTIME.search(str(error)):
        return True
    if isinstance(error, AttributeError) and incomplete(error):
        return True
    if isinstance(error, TypeError) and SIGNATURE.search(str(error)):
        return True
    frames = frames_of(error)
    torch_s = Path(PASS_ON[0])
    raised = Path(frames[-1][0].f_code.co_filename).resolve() if frames else Path()
    if any(raised.is_relative_to(torch_s / part) for part in DEVICE_CODE):
        return True
    return MISSING.search(str(error)) is not None and DEVICE.search(str(error)) is not None


def incomplete(error: AttributeError) -> bool:
    """Return whether torch, paritybit or a stand-in for a part of CUDA lacks an attribute."""
    given = error.obj if isinstance(error.obj, (ModuleType, type)) else type(error.obj)
    name = (
        given.__name__ if isinstance(given, ModuleType) else str(getattr(given, "__module__", ""))
    )
    lacks = {PACKAGE.name, "torch"} if isinstance(given, ModuleType) else {PACKAGE.name}
    if name.partition(".")[0] in lacks:
        return True
    lacking = (part.__name__ for part in PARTS if hasattr(part, error.name or ""))
    return any(part in given.__name__ for part in lacking)


def frames_of(error: BaseException) -> list[Frame]:
    """Return the frames of an error up to an operation that the sanitizer passes on."""
    frames = traceback.walk_tb(error.__traceback__)
    return list(takewhile(lambda one: one[0].f_code.co_filename != fills.__file__, frames))


def of_engine(frame: Frame) -> bool:
    """Return whether a frame belongs to an engine, and does not only pass on its arguments."""
    code = frame[0].f_code
    return engine_path(code.co_filename) is not None and not wraps(code)


CHECKERS = re.compile(
    r"^_*(self_|sanity_)?(check|verify|assert|validate|ensure|report|raise|throw|fail)(_|$|[A-Z])"
)
"""Matches functions that only check something, or raise what another has decided."""


IDLE = re.compile(r"(^|_)idle(_|$)")
"""Matches functions that run while an engine has no request, so none can be at fault."""


def blamed(frames: list[Frame]) -> Frame:
    """Return the innermost frame that does more than check something, or else the innermost one."""
    kept = (one for one in reversed(frames) if not CHECKERS.match(one[0].f_code.co_name))
    return next(kept, frames[-1])


def shown(frame: Frame) -> str:
    """Return the line of a frame as `engine/file.py:12 in function`."""
    code = frame[0].f_code
    return line_of(str(engine_path(code.co_filename)), frame[1], code)


def passes_on(path: str) -> bool:
    """Return whether a file belongs to torch or to the standard library."""
    if path.startswith("<"):
        return True
    torch_s, standard = PASS_ON
    real = str(Path(path).resolve())
    installed = "site-packages" in real or "dist-packages" in real
    return real.startswith(torch_s) or (real.startswith(standard) and not installed)


def engine_path(path: str) -> str | None:
    """Return a path from an engine's package on, or None for other files."""
    found = (engine_file(path, name) for name in engines())
    return min(filter(None, found), key=len, default=None)


@functools.cache
def engines() -> frozenset[str]:
    """Return the top-level packages of all engines with a connector."""
    return frozenset({"sglang", "transformers", "vllm", *connectors()})
