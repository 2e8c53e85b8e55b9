"""Shrinks data in passes, for schedules of the laboratory and for requests of a whole engine."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

Data = TypeVar("Data")

Pass = Callable[[Data], Iterator[Data]]
"""Yields simpler data to try, the simplest first."""


def shrunk(
    data: Data,
    passes: Sequence[Pass[Data]],
    fails: Callable[[Data], bool],
    done: Callable[[], bool] = lambda: False,
) -> Data:
    """Return the simplest failing data that was found before `done` returned True.

    Data that still fails replaces what was there, which must fail. A pass then continues at the
    same place in what it proposes for the new data. Shrinking ends when no pass changes anything.
    """
    while not done():
        before = data
        for proposals in passes:
            position = 0
            while not done():
                proposal = next(islice(proposals(data), position, None), None)
                if proposal is None:
                    break
                if proposal != data and fails(proposal):
                    data = proposal
                else:
                    position += 1
        if data == before:
            break
    return data
