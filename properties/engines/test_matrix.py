"""The matrix of a walk of releases: what a cell says, and what is written beside it."""

from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.cli.engines.matrix import cells, runners_of, write_matrix
from paritybit.harness.engines.adapters.packages import SGLANG


def record(**changed: Any) -> dict[str, Any]:
    """Return the record of a trial in which the decode runner alone was replayed."""
    answer = {
        "findings": [],
        "undecided": [],
        "lacking": [{"runner": "piecewise", "reason": "it is not listed"}],
        "legs": [{"runner": "decode", "replays": 5}],
    }
    return {"answer": {**answer, **changed}}


def finding(*faults: str, listed: str | None = None) -> dict[str, Any]:
    """Return a finding of the decode runner."""
    return {"runner": "decode", "property": "kv_parity", "faults": list(faults), "listed": listed}


OPEN = [{"leg": "decode mimo", "runner": "decode", "reason": "a part has moved"}]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "clean (5)"),
        ({"findings": [finding(listed="known")]}, "clean (5)"),
        ({"findings": [finding("swa_pad"), finding("swa_pad"), finding()]}, "swa_pad, kv_parity"),
        ({"undecided": OPEN}, "?"),
        ({"findings": [finding()], "undecided": OPEN}, "kv_parity ?"),
        ({"legs": []}, "?"),
    ],
)
def test_a_cell_says_what_differs_and_never_clean_of_what_is_open(
    changed: dict[str, Any], said: str
) -> None:
    found = cells(record(**changed), runners_of(SGLANG))
    assert found["decode"] == said
    assert found["piecewise"] == "–"
    assert found["breakable"] == "?"


def test_what_is_undecided_stands_below_the_matrix_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "matrix.md"
    write_matrix(path, [("1", record(undecided=OPEN)), ("2", "there is no release 2")], "cpu")
    text = path.read_text()
    assert "- 1: decode mimo: a part has moved" in text
    assert "- 2: there is no release 2" in text
    assert text.count("\n| ") == 3


def test_a_walk_of_some_runners_has_no_column_of_another(tmp_path: Path) -> None:
    path = tmp_path / "matrix.md"
    write_matrix(path, [("1", record())], "cpu", asked=("decode",))
    text = path.read_text()
    assert "| release | decode |" in text
    assert "`make bisect-all-releases ARGS='--runner decode'`" in text
