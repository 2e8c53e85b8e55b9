"""The journal of this process, for tests of what serves an engine."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paritybit.watch import journal
from paritybit.watch.journal import Journal


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """The journal of this process, in `tmp_path`."""
    made = Journal(tmp_path / f"process-{os.getpid()}.jsonl")
    monkeypatch.setattr(journal, "_OPEN", [made])
    yield made
    made.end()
