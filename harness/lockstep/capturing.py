"""Attributes errors while an engine is built or captured to that engine."""

from collections.abc import Iterator
from contextlib import contextmanager

from paritybit.harness.lockstep.tracebacks import (
    SUBJECT_RUNS,
    SubjectFailedError,
    raised_by_subject,
)
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
        cause = error.__cause__ or error
        if isinstance(cause, SharedBufferError) or not raised_by_subject(cause):
            raise cause from None
        raise
