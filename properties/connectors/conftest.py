"""Closes the journals that the tests of connectors leave open."""

from collections.abc import Iterator
from typing import Any

import pytest

from paritybit.watch.journal import Journal


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close each journal that a test has made."""
    made, begin = list[Journal](), Journal.__init__

    def begun(journal: Journal, *arguments: Any, **named: Any) -> None:
        begin(journal, *arguments, **named)
        made.append(journal)

    monkeypatch.setattr(Journal, "__init__", begun)
    yield
    for journal in made:
        if journal.file is not None:
            journal.file.close()
            journal.file = None
