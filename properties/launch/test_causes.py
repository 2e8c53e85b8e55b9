"""The order of causes, what may follow from each, and the end of a run with many causes."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from paritybit.drive.company import CHECK
from paritybit.launch.schema import Cause, EngineChange, RecordedFinding
from paritybit.launch.words import SEVERITY, all_causes, causes_of
from paritybit.watch.checks import CHECKS
from paritybit.watch.settings import RANKS_DISAGREE
from properties.launch.conftest import Script, Watch
from properties.support.records import record


def found(
    check: str, cause: str, forward: int, after: str | None = None, config: str = "config"
) -> RecordedFinding:
    key = f"{check} | {cause} | {config}"
    return RecordedFinding(
        check, "text", key, forward, cause=Cause(cause), config=config, after=after
    )


CHANGES = (EngineChange("sglang/srt/pool.py:12", "Pool.free", "sglang 0.5.23"),)


def shown(finding: RecordedFinding) -> RecordedFinding:
    return replace(finding, cause=Cause("an input", finding.cause_name, shown=True))


def test_each_check_has_a_severity() -> None:
    listed = [check for tier in SEVERITY for check in tier]
    assert sorted(listed) == sorted([*CHECKS, CHECK, RANKS_DISAGREE])


@pytest.mark.parametrize(
    ("findings", "order"),
    [
        # Of one cause, the most severe finding comes first, and with it the cause.
        (
            [
                found("changed dtype", "a", 2),
                found("wrong list", "b", 7),
                found("stray write", "a", 7),
            ],
            ["a", "b"],
        ),
        # A contract that may do no harm comes after harm, however early it is violated.
        ([found("changed dtype", "a", 2), found("wrong list", "b", 7)], ["b", "a"]),
        # Else the first one leads, also in a config.
        ([found("stale input", "a", 5), found("stray write", "b", 6)], ["a", "b"]),
        (
            [found("stale input", "a", 5), found("stray write", "b", 2, config="later")],
            ["a", "b"],
        ),
        # A known cause fails nothing.
        ([replace(found("stray write", "a", 1), known="x"), found("leak", "b", 2)], ["b", "a"]),
    ],
)
def test_the_order_of_causes(findings: list[RecordedFinding], order: list[str]) -> None:
    assert [cause.name for cause in all_causes(findings)] == order
    assert all_causes(findings)[0].findings[0].check != "changed dtype"


@pytest.mark.parametrize(
    ("later", "follows"),
    [
        ([found("wrong owner", "b", 6, after="a")], True),
        ([found("wrong owner", "b", 6)], False),
        # What an experiment has shown stands for itself.
        ([shown(found("stray write", "b", 6, after="a"))], False),
        # But an input that is itself stale may be so because of another one.
        ([shown(found("stray write", "b", 6, "a")), found("stale input", "b", 6, "a")], True),
        # It occurs without the first one, too.
        (
            [found("wrong owner", "b", 6, after="a"), found("wrong owner", "b", 3, config="other")],
            False,
        ),
        # One change of the engine caused both.
        ([replace(found("wrong owner", "b", 6), changes=CHANGES)], True),
        # A less severe cause takes nothing away.
        ([found("leak", "b", 6, after="a")], True),
        # Two causes that touched the same request in different orders.
        ([found("wrong owner", "b", 6, after="c"), found("wrong owner", "c", 7, after="b")], False),
    ],
)
def test_what_may_follow_from_a_cause(later: list[RecordedFinding], follows: bool) -> None:
    first = replace(found("stale input", "a", 5), changes=CHANGES)
    root, *others = causes_of([first, *later])
    assert root.name == "a"
    assert [one.name for one in root.consequences] == (["b"] if follows else [])
    assert bool(others) is not follows


def test_no_severe_cause_is_listed_under_a_less_severe_one() -> None:
    causes = causes_of([found("leak", "a", 1), found("wrong owner", "b", 5, after="a")])
    assert [(one.name, one.consequences) for one in causes] == [("b", ()), ("a", ())]


STORM = """
from dataclasses import replace

def one(number, check, forward, request=None):
    cause = {'what': f'input {number}', 'source': f'sglang/srt/a.py:{number + 1}'}
    reader = None if request is None else {'request': request, 'position': 0, 'forward': forward}
    return replace(STRAY, check=check, key=f'{check} | {number}', cause=cause, forward=forward,
                   slots=(), writer=None, freed=None, reader=reader)

engine([
    one(0, 'stale input', 4, 'r1'), one(0, 'wrong list', 4, 'r1'), one(0, 'wrong list', 5, 'r2'),
    *(one(n, 'wrong owner', 5 + n, f'r{n % 2 + 1}') for n in range(1, 30)),
    *(one(n, 'wrong owner', 5 + n, f'r{n}') for n in range(30, 34)),
])
"""


def test_a_storm_shows_at_most_three_causes_the_first_one_first(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    done = watch("--", *script(STORM))
    lines = [line.removeprefix("paritybit: ") for line in done.stderr.splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("cause 1: "))
    end = lines[begin:]
    assert len(end) <= 15
    assert end[0].startswith("cause 1: input 0: 2 × wrong list, 1 × stale input")
    assert any("29 findings with 29 causes may be consequences" in line for line in end[:9])
    assert [line for line in end if line.startswith("cause ")][3:] == []
    assert any(line.startswith("2 more causes") for line in end)
    assert "with 5 causes" in end[-1]
    assert sum(line.startswith(("stale input", "wrong")) for line in lines[:begin]) <= 12


SEVERAL = """
from dataclasses import replace
of_process().write('script', settings={})
engine([
    replace(STRAY, check='changed dtype', key='changed dtype | - | x', forward=2),
    STRAY,
    replace(STRAY, key='stray write | full | x', group='full'),
    replace(STRAY, check='corrupted read', key='corrupted read | swa | x'),
])
"""


def test_each_check_of_a_cause_has_a_case_and_the_worst_one_the_first(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    watch("--", *script(SEVERAL))
    cases = {
        path.name: json.loads(path.read_text())["key"]
        for path in (tmp_path / "out" / "latest" / "cases").iterdir()
    }
    assert cases == {
        "finding-1.json": "stray write | swa | out_cache_loc_swa",
        "finding-2.json": "corrupted read | swa | x",
        "finding-3.json": "changed dtype | - | x",
    }
    named = {(one["check"], one["case"]) for one in record(tmp_path)["findings"]}
    assert named == {
        ("stray write", "finding-1.json"),
        ("corrupted read", "finding-2.json"),
        ("changed dtype", "finding-3.json"),
    }
    page = (tmp_path / "out" / "latest" / "index.html").read_text()
    assert all(name in page for name in cases)
