"""Two records of the sanitizer are compared by the causes of their findings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from paritybit.__main__ import main
from paritybit.launch.changes import changes
from paritybit.launch.record import write
from paritybit.launch.schema import WatchRecord
from properties.support.harness.command_line import CANNOT_RUN, FINDING, OK
from properties.support.records import finding, watched


@pytest.mark.parametrize(
    ("before", "after", "code", "says"),
    [
        (watched([]), watched([]), OK, "no findings in either"),
        (watched([]), watched([finding("a")]), FINDING, "new: a: 1 × leak"),
        (watched([finding("a")]), watched([finding("a", 2)]), OK, "no difference: 1 cause in both"),
        (
            watched([finding("a"), finding("b")]),
            watched([finding("b"), finding("c")]),
            FINDING,
            "new: c: 1 × leak\nfixed: a: 1 × leak",
        ),
        (watched([finding("a")]), watched([]), OK, "fixed: a: 1 × leak"),
        (
            watched([finding("a")]),
            watched([], ["overlap"]),
            CANNOT_RUN,
            "not checked again: a: 1 × leak",
        ),
        (
            watched([], ["overlap"]),
            watched([finding("a")]),
            FINDING,
            "not checked before: a: 1 × leak",
        ),
        (
            watched([]),
            replace(watched([]), undecided=("no graph",)),
            CANNOT_RUN,
            "no findings in either\nundecided in the later run: no graph",
        ),
    ],
)
def test_the_command_line_says_so(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: WatchRecord,
    after: WatchRecord,
    code: int,
    says: str,
) -> None:
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, record in zip(paths, (before, after), strict=True):
        write(record, path)
    assert main(["report", *map(str, paths)]) == code
    assert capsys.readouterr().out == f"{says}\n"


COUNTS = {
    **{"forwards": 90, "forwards: decode": 80, "replays": 80, "padded_replays": 30},
    **{"captures: decode": 4, "action: flush": 2, "tried: leak": 5, "waves": 3},
}
SETTINGS = {"page_size": ("1",), "seed": ("0",), "backend": ("triton",)}


def run(
    found: bool, counts: Mapping[str, int], settings: Mapping[str, tuple[str, ...]], **fields: Any
) -> WatchRecord:
    """Return a record of one config with these counts and settings."""
    made = watched([replace(finding("a"), forward=70)] if found else [])
    (config,) = made.configs
    configs = (replace(config, counts={**COUNTS, **counts}, settings={**SETTINGS, **settings}),)
    return replace(made, **{"configs": configs, **fields})


def kind(before: WatchRecord, after: WatchRecord) -> str:
    """Return the change of the only cause."""
    (change,) = changes(before, after)
    return change.kind


@pytest.mark.parametrize(
    ("counts", "settings", "fields", "same"),
    [
        ({}, {}, {}, True),
        ({"waves": 0, "replays: decode": 3}, {"seed": ("1",), "new": ("1",)}, {}, True),
        ({}, {"page_size": ("1", "64")}, {"checks": ("leak",)}, True),
        ({"padded_replays": 0}, {}, {}, False),
        ({"forwards: decode": 0}, {}, {}, False),
        ({"forwards": 69}, {}, {}, False),
        ({"captures: decode": 0}, {}, {}, False),
        ({"action: flush": 0}, {}, {}, False),
        ({"tried: leak": 0}, {}, {}, False),
        ({}, {"page_size": ("64",)}, {}, False),
        ({}, {}, {"checks": ("stray write",)}, False),
        ({}, {}, {"every": 100}, False),
        ({}, {}, {"model": "gpt_oss"}, False),
        ({}, {}, {"configs": ()}, False),
    ],
)
def test_two_runs_are_compared_where_both_could_find_it(
    counts: Mapping[str, int],
    settings: Mapping[str, tuple[str, ...]],
    fields: Mapping[str, Any],
    same: bool,
) -> None:
    before, after = run(True, {}, {}), run(False, counts, settings, **fields)
    assert kind(before, after) == ("fixed" if same else "not checked again")
    assert kind(after, before) == ("new" if same else "not checked before")
    undecided = replace(after, verdict="undecided")
    assert kind(before, undecided) == "not checked again"


def test_a_higher_rate_than_before_is_enough() -> None:
    before = run(True, {}, {}, every=100)
    assert kind(before, run(False, {}, {}, every=1)) == "fixed"
