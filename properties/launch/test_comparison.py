"""Two records of the sanitizer are compared by the causes of their findings."""

from dataclasses import replace
from pathlib import Path

import pytest

from paritybit.__main__ import main
from paritybit.launch.record import write
from paritybit.launch.schema import Watched
from properties.support.harness.command_line import CANNOT_RUN, FINDING, OK
from properties.support.records import finding, watched


@pytest.mark.parametrize(
    ("before", "after", "code", "says"),
    [
        (watched([]), watched([]), OK, "no findings in either"),
        (watched([]), watched([finding("a")]), FINDING, "new: a: 1 × leak"),
        (watched([finding("a")]), watched([finding("a", 2)]), OK, "still there: a: 1 × leak → 2"),
        (watched([finding("a")]), watched([]), OK, "fixed: a: 1 × leak"),
        (watched([finding("a")]), watched([], ["overlap"]), CANNOT_RUN, "gone: a: 1 × leak"),
        (
            watched([]),
            replace(watched([]), undecided=("no graph",)),
            CANNOT_RUN,
            "undecided in the later run: no graph",
        ),
    ],
)
def test_the_command_line_says_so(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: Watched,
    after: Watched,
    code: int,
    says: str,
) -> None:
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, record in zip(paths, (before, after), strict=True):
        write(record, path)
    assert main(["compare", *map(str, paths)]) == code
    assert says in capsys.readouterr().out
