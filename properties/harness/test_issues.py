"""Issues about findings: one per engine and cause, opened or updated from records."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from paritybit.reports.watched.issue import by_cause, issue_of, rows_of, seen_in

from paritybit.launch.schema import FORMAT, VERSION, Watched
from properties.support.github import Repository, answering
from properties.support.places import ROOT
from properties.support.quick import quick
from properties.support.records import finding, shown, watched


def test_each_cause_that_is_not_known_has_one_issue_over_all_runs() -> None:
    first = replace(watched([finding("a"), finding("b")]), engine="sglang==1")
    second = replace(watched([finding("a", 5)]), engine="sglang==2")
    other = replace(watched([finding("a")]), engine="vllm==1")
    groups = by_cause(one for record in (first, second, other) for one in seen_in(record, {}))
    issues = [issue_of(key, found) for key, found in groups.items()]
    assert [issue.title for issue in issues] == ["sglang: a", "sglang: b", "vllm: a"]
    assert len({issue.key for issue in issues}) == 3
    assert [row.split(" | ")[0] for row in rows_of(issues[0].body)] == [
        "| sglang==1", "| sglang==2"
    ]  # fmt: skip
    (only,) = seen_in(shown(), {})
    assert only.cause.name == "out_cache_loc_swa"


def test_an_issue_keeps_the_rows_of_earlier_runs_and_replaces_its_own() -> None:
    def text(engine: str, number: int, before: str = "") -> str:
        record = replace(watched([finding("a", number)]), engine=engine)
        ((key, found),) = by_cause(seen_in(record, {})).items()
        return issue_of(key, found, before).body

    before = text("sglang==2", 5, text("sglang==1", 1))
    assert rows_of(text("sglang==1", 7, before)) == [
        "| sglang==1 | 7 × leak |  |", "| sglang==2 | 5 × leak |  |"
    ]  # fmt: skip
    assert text("sglang==2", 5, before.replace("\n", "\r\n")) == before


def test_an_issue_holds_the_lines_of_the_engine_and_a_case_that_is_not_long() -> None:
    case = {"format": "paritybit-watch-case", "text": "short"}
    for held in (case, {**case, "text": "x" * 30_000}):
        ((key, found),) = by_cause(seen_in(shown(), {"finding-1.json": held})).items()
        body = issue_of(key, found).body
        assert f"<!-- {key} -->" in body
        assert "   11      line = 11" in body
        assert (json.dumps(held, separators=(",", ":")) in body) == (held is case)


@pytest.fixture
def repository() -> Iterator[Repository]:
    """A repository that answers on this machine."""
    with answering() as held:
        yield held


def run(folder: Path, record: Watched, repository: Repository, *words: str) -> str:
    """Write a record, run the script on it, and return what it prints."""
    path = folder / "watch.json"
    path.write_text(json.dumps({"format": FORMAT, "version": VERSION, **asdict(record)}))
    done = subprocess.run(
        quick(ROOT / ".ci" / "issues.py", *words, path),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **repository.variables},
    )
    return done.stdout


def test_an_issue_is_opened_updated_and_left_alone(repository: Repository, tmp_path: Path) -> None:
    record = replace(watched([finding("a")]), engine="sglang==1")
    assert "would open or update: sglang: a" in run(tmp_path, record, repository)
    assert repository.asked == []
    assert "opened #1: sglang: a" in run(tmp_path, record, repository, "--post")
    assert repository.issues[0]["labels"] == ["paritybit-finding"]
    assert "unchanged: #1" in run(tmp_path, record, repository, "--post")
    later = replace(record, engine="sglang==2")
    assert "updated #1" in run(tmp_path, later, repository, "--post")
    assert len(rows_of(repository.issues[0]["body"])) == 2
    repository.issues[0]["state"] = "closed"
    assert "closed, and left alone: #1" in run(tmp_path, record, repository, "--post")
    assert [re.sub(r"\?.*", "", one) for one in repository.asked if "GET" not in one] == [
        "POST /repos/example/paritybit/issues", "PATCH /repos/example/paritybit/issues/1"
    ]  # fmt: skip
    assert len(repository.issues) == 1
