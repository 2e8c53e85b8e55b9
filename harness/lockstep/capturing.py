"""Attributes errors while an engine is built or captured to that engine."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paritybit.harness.lockstep.tracebacks import SUBJECT_RUNS, SUBJECTS, SubjectFailedError
from paritybit.subjects.buffers import SharedBufferError


@contextmanager
def capture_runs() -> Iterator[None]:
    """Turn an error that code in `subjects/` raises in this context into SubjectFailedError.

    SharedBufferError stays as it is: see `Lockstep.refused`.
    """
    try:
        with SUBJECT_RUNS:
            yield
    except SubjectFailedError as error:
        cause = error.__cause__
        frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
        if isinstance(cause, SharedBufferError) or not frames:
            raise (cause or error) from None
        if not Path(frames[-1].filename).is_relative_to(SUBJECTS):
            raise (cause or error) from None
        raise
