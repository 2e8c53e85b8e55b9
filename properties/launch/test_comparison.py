"""Two records of the sanitizer are compared by the causes of their findings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from paritybit.reports.compared.watched import FIXED, GONE, NEW, STAYS, compare_watched

from paritybit.__main__ import main
from paritybit.launch.record import write
from paritybit.launch.schema import Environment, Finding, Leg, Verdict, Watched

OK, FINDING, CANNOT_RUN = 0, 1, 125

LEG = Leg("decode graphs", (), "ended", 0, 1.0, {}, {}, {}, ())


def finding(cause: str, number: int = 1) -> Finding:
    return Finding("leak", "a slot leaks", f"leak | {cause}", number, LEG.name, cause)


def watched(findings: Sequence[Finding], legs: Sequence[str] = (LEG.name,)) -> Watched:
    verdict: Verdict = "finding" if findings else "no finding"
    return Watched(
        environment=Environment("1", "3.11", None, None, None),
        command="paritybit watch",
        verdict=verdict,
        message="",
        interrupted=None,
        engine="sglang==1",
        model="gemma4",
        device="cpu",
        seed=0,
        every=1,
        checks=None,
        seconds=1.0,
        counts={},
        findings=tuple(findings),
        undecided=(),
        legs=tuple(replace(LEG, name=name) for name in legs),
        not_tried=(),
    )


def test_each_cause_is_new_gone_fixed_or_still_there() -> None:
    before = watched([finding("a", 3), finding("b")])
    after = watched([finding("a", 5), finding("c")])
    found = [(one.kind, one.cause, one.before, one.after) for one in compare_watched(before, after)]
    assert found == [
        (NEW, "c", "", "1 × leak"),
        (STAYS, "a", "3 × leak", "5 × leak"),
        (FIXED, "b", "1 × leak", ""),
    ]
    other = watched([], ["overlap"])
    assert {one.kind for one in compare_watched(before, other)} == {GONE}


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
