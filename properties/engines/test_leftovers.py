"""What earlier replays left in static inputs: the smallest set of them that explains a violation.

Our own engine with its catalogued bugs stands in for another.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.cli.engines import bisect as command
from paritybit.harness.engines import fetch
from paritybit.harness.engines.case import EngineCase
from paritybit.harness.engines.faults import Finding
from paritybit.harness.engines.fetch import Found
from paritybit.harness.engines.localise import GivingBack, InputSet, Leftovers, smallest_set
from paritybit.harness.engines.playlist import SHRINKING
from paritybit.harness.engines.trial import Ran
from paritybit.harness.engines.worker import LegAnswer, LegTask
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.machine.workers import Workers
from paritybit.harness.records.case import Case

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, FINDING, MALFORMED, OK
from properties.support.places import CORPUS

ROWS, LOCATIONS = "req_pool_indices", "out_cache_loc_swa"
STALE_ROWS, STALE_LOCATIONS, OTHER_DTYPE = "req_pool_pad", "swa_pad", "swa_int64"


@cache
def giving_back(*bugs: str) -> GivingBack:
    """Return what gives inputs back before the first step that bugs make go wrong."""
    trial = TrialConfig(buckets=(2, 4), token_buckets=(4, 24)).with_bug(*bugs)
    lockstep = Lockstep(trial)
    first = lockstep.play(SHRINKING).violations[0]
    return GivingBack(lockstep, SHRINKING.up_to(first.step), STEP_PROPERTIES)


@pytest.mark.parametrize(
    ("bugs", "target", "expected"),
    [
        ((STALE_LOCATIONS,), "kv_parity", (LOCATIONS,)),
        ((STALE_ROWS,), "read_frame", (ROWS,)),
        ((STALE_LOCATIONS, STALE_ROWS), "kv_parity", (LOCATIONS,)),
        ((STALE_LOCATIONS, STALE_ROWS), "read_frame", (ROWS,)),
        ((STALE_LOCATIONS, STALE_ROWS), "hermetic_replay", (ROWS, LOCATIONS)),
    ],
)
def test_the_inputs_that_explain_a_violation_are_found_and_no_other(
    bugs: tuple[str, ...], target: str, expected: InputSet
) -> None:
    """Two that each make a property go wrong explain it together alone."""
    found = giving_back(*bugs).explain(target)
    assert found.smallest == expected
    tried = dict(found.tries)
    assert target in tried[()]
    assert target not in tried[expected]
    assert all(target in tried[(name,)] for name in expected if len(expected) > 1)
    assert set(expected) < set(found.left)


def test_what_no_leftover_explains_is_said_to_be_none() -> None:
    found = giving_back(OTHER_DTYPE).explain("index_contract")
    assert (found.smallest, found.cause) == (None, None)
    assert [names for names, _ in found.tries] == [(), found.left]
    assert f"not even all {len(found.left)} that changed" in found.no_cause


def test_a_property_that_is_not_violated_has_no_cause() -> None:
    found = giving_back(STALE_ROWS).explain("write_frame")
    assert not found.reproduced
    assert found.smallest is None


def test_no_set_of_inputs_is_played_twice() -> None:
    given = giving_back(STALE_LOCATIONS, STALE_ROWS)
    given.explain("hermetic_replay")
    before = len(given.lockstep.history), dict(given.tried)
    given.explain("hermetic_replay")
    assert (len(given.lockstep.history), given.tried) == before


@pytest.mark.parametrize(
    ("mending", "expected"),
    [
        ([{"c"}], {"c"}),
        ([{"a", "d"}], {"a", "d"}),
        ([{"a", "b", "d"}], {"a", "b", "d"}),
        ([{"a", "b"}, {"e"}], {"e"}),
        ([{"a", "b", "c", "d", "e"}], {"a", "b", "c", "d", "e"}),
    ],
)
def test_a_smallest_set_mends_and_none_of_it_can_be_left_out(
    mending: Sequence[set[str]], expected: set[str]
) -> None:
    names = tuple("abcde")
    found = smallest_set(names, lambda some: any(needed <= set(some) for needed in mending))
    assert set(found) == expected


def test_a_cause_names_one_input_or_all_that_are_only_together_the_cause() -> None:
    one = Leftovers("kv_parity", ("a", "b"), (), ("a",))
    assert one.cause == (
        "the cause is stale data in static input a: with the values of a freshly captured"
        " runner, kv_parity is not violated"
    )
    several = Leftovers("kv_parity", ("a", "b", "c"), (), ("a", "b", "c"))
    assert "the cause is stale data in static inputs a, b and c: with" in str(several.cause)
    assert "changed no static input" in Leftovers("kv_parity", (), (), None).no_cause


EXPLAINED = Leftovers(
    "kv_parity",
    ("a", "b"),
    (
        ((), frozenset({"kv_parity", "write_frame"})),
        (("a", "b"), frozenset()),
        (("a",), frozenset()),
    ),
    ("a",),
)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a case of an engine that is not fetched."""
    monkeypatch.setattr(fetch, "find", lambda spec: Found(spec, tmp_path))
    path = tmp_path / "case.json"
    EngineCase("sglang==1", Case(TrialConfig(), SHRINKING, "kv_parity", 0, ())).write(path)
    return path


def bisected(monkeypatch: pytest.MonkeyPatch, case: Path, *words: str, **says: object) -> int:
    """Bisect a case whose leg says what is given; return the exit code."""

    def run_legs(tasks: Sequence[LegTask], workers: Workers, log: Path) -> Ran:
        (task,) = tasks
        answer = LegAnswer(task.label, task.runner, task.preset)
        for name, value in says.items():
            setattr(answer, name, value)
        return Ran(tasks, {task.label: answer})

    monkeypatch.setattr(command, "run_legs", run_legs)
    return main(["bisect", "--case", str(case), "--engine", "sglang==1", *words])


def test_each_try_is_printed_and_then_the_smallest_set(
    case: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisected(monkeypatch, case, leftovers=EXPLAINED) == FINDING
    assert capsys.readouterr().out.splitlines() == [
        "kv_parity on decode in sglang==1",
        "violated nothing reset: kv_parity, write_frame",
        "passed   a + b reset: nothing",
        "passed   a reset: nothing",
        "smallest set: a",
        EXPLAINED.cause,
    ]


def test_what_is_no_leftover_is_a_finding_still(
    case: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    red = frozenset({"kv_parity"})
    none = Leftovers("kv_parity", ("a",), (((), red), (("a",), red)), None)
    assert bisected(monkeypatch, case, leftovers=none) == FINDING
    assert capsys.readouterr().out.splitlines()[-1] == none.no_cause


def test_a_case_that_is_clean_has_nothing_to_explain_and_says_what_else_is_violated(
    case: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisected(monkeypatch, case) == OK
    assert (
        capsys.readouterr().out
        == "sglang==1: kv_parity is not violated, so there is nothing to explain\n"
    )
    others = [Finding("decode", "gpt_oss", "read_frame", "row 3").to_json()]
    assert bisected(monkeypatch, case, findings=others) == OK
    assert "(violated instead: read_frame)" in capsys.readouterr().out


@pytest.mark.parametrize("says", [{"undecided": "a part has moved"}, {"lacking": "no such"}])
def test_a_case_that_could_not_be_played_is_undecided(
    says: dict[str, str],
    case: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bisected(monkeypatch, case, **says) == CANNOT_RUN
    assert "".join(says.values()) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["swa_pad", "--case", "CASE"], "has no bugs to choose from"),
        (["--case", "CASE", "--runner", "decode"], "omit --runner and --out"),
        (["--case", "CASE", "--out", "case.json"], "omit --runner and --out"),
        (
            ["--case", "CASE", "--property", "no_property"],
            "unknown property 'no_property'; the nearest",
        ),
        (["--engine", "sglang==1"], "no --case was given"),
        (["--engine", "sglang==1", "--case", "OURS"], "swa_pad@decode.json is not one"),
        (["--case", "OURS"], "at least one bug"),
        ([], "at least one bug"),
    ],
)
def test_a_bisection_that_makes_no_sense_is_refused_in_one_sentence(
    words: list[str], said: str, case: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"CASE": str(case), "OURS": str(CORPUS / "swa_pad@decode.json")}
    assert main(["bisect", *(paths.get(word, word) for word in words)]) == MALFORMED
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
