"""Tests of the record's schema: what is written reads back, and anything else is refused."""

import json
import re
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from paritybit.harness.campaigns.task import Status
from paritybit.harness.records import record as records
from paritybit.harness.records import revision
from paritybit.harness.records.schema import (
    LATER,
    CleanStatus,
    Environment,
    Finding,
    HuntStatus,
    Record,
    TrialSettings,
)
from paritybit.harness.records.typed_json import from_json, to_json
from paritybit.reports.verdicts import STATUSES

from properties.support.reports.records import SAMPLES, green

Data = dict[str, Any]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_reads_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    records.write(SAMPLES[name], path)
    assert records.load(path) == SAMPLES[name]


def test_the_schema_has_every_status_of_a_task() -> None:
    declared = {*get_args(CleanStatus), *get_args(HuntStatus)}
    assert declared == {str(status) for status in Status}
    assert STATUSES.keys() == set(get_args(HuntStatus))


def refused(data: Any) -> str:
    """Return the sentence that refuses JSON data as a record."""
    with pytest.raises(ValueError, match="record") as caught:
        from_json(Record, data, "the record")
    message = str(caught.value)
    assert "\n" not in message
    return message


PATHS: dict[str, tuple[str | int, ...]] = {
    "the record": (),
    "the record.environment": ("environment",),
    "the record.clean[0]": ("clean", 0),
    "the record.clean[0].trial": ("clean", 0, "trial"),
    "the record.bugs[0]": ("bugs", 0),
    "the record.bugs[0].finding": ("bugs", 0, "finding"),
    "the record.bugs[0].finding.violations[0]": ("bugs", 0, "finding", "violations", 0),
    "the record.bugs[0].finding.timeline[0]": ("bugs", 0, "finding", "timeline", 0),
    "the record.bugs[0].finding.explanation": ("bugs", 0, "finding", "explanation"),
    "the record.bugs[0].finding.explanation.suspects[0]": (
        *("bugs", 0, "finding", "explanation", "suspects", 0),
    ),
    "the record.pairs[0]": ("pairs", 0),
    "the record.contracts[0].rows[0]": ("contracts", 0, "rows", 0),
}
"""Objects of a record, by the name that a message gives them."""


def at(data: Any, path: tuple[str | int, ...]) -> Data:
    """Return the object at a path."""
    for key in path:
        data = data[key]
    found: Data = data
    return found


ADDED_LATER = {
    one.name
    for kind in (Record, Environment, TrialSettings, Finding)
    for one in fields(kind)
    if one.metadata == LATER
}
"""What older records lack."""


@pytest.mark.parametrize("place", PATHS)
def test_an_object_that_lacks_anything_is_refused_by_its_name(place: str) -> None:
    whole = to_json(green())
    for key in at(whole, PATHS[place]).keys() - ADDED_LATER:
        data = deepcopy(whole)
        del at(data, PATHS[place])[key]
        assert refused(data) == f"{place} lacks {key}"


def test_a_record_from_before_findings_had_a_history_reads_with_none() -> None:
    data = to_json(green())
    del data["bugs"][0]["finding"]["history"]
    assert from_json(Record, data, "the record") == green()


@pytest.mark.parametrize("place", PATHS)
def test_an_object_with_anything_more_is_refused_by_its_name(place: str) -> None:
    data = to_json(green())
    at(data, PATHS[place])["told"] = 1
    assert refused(data) == f"{place} has the unknown key 'told'"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("verdict",),
            "odd",
            "the record.verdict is 'odd'; expected one of green, red, interrupted",
        ),
        (("seed",), True, "the record.seed is True; expected a whole number"),
        (("seconds",), float("nan"), "the record.seconds is nan; expected a finite number"),
        (("clean",), 3, "the record.clean is 3; expected a list"),
        (
            ("clean", 0, "events"),
            {"x": -1},
            "a state was reached a negative number of times",
        ),
        (("bugs",), ["x"], "the record.bugs[0] is 'x'; expected an object"),
        (("environment", "dirty"), 1, "the record.environment.dirty is 1; expected true or false"),
        (("properties", "kv_parity"), 1, "the record.properties.kv_parity is 1; expected a text"),
        (
            ("bugs", 0, "schedules_to_detection"),
            0,
            "schedule 0 cannot detect a bug: schedules count from 1",
        ),
        (
            ("bugs", 0, "finding", "explanation", "slots", 0, "written"),
            [999],
            "a sub-pool of 80 slots has no other",
        ),
        (
            ("bugs", 0, "finding", "explanation", "static_inputs", 0, "left_by"),
            [],
            "static input 'input_ids' has an element that no step wrote",
        ),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_name(
    path: tuple[str | int, ...], value: Any, message: str
) -> None:
    data = to_json(green())
    container: Any = at(data, path[:-1])
    container[path[-1]] = value
    with pytest.raises(ValueError, match=r".") as caught:
        from_json(Record, data, "the record")
    assert str(caught.value).startswith(message)


@dataclass(frozen=True)
class Sample:
    """Every kind of value that a record may declare."""

    word: Literal["a", "b"]
    count: int
    share: float
    either: str | int | tuple[int, ...]
    maybe: str | None
    anything: dict[str, Any]


SAMPLE = Sample("a", 1, 2.5, (1, 2), None, {"list": [1, None, "x"], "deep": {"y": True}})


@pytest.mark.parametrize("either", ["text", 7, (1, 2), ()])
def test_each_kind_of_value_reads_back(either: str | int | tuple[int, ...]) -> None:
    sample = Sample("a", 1, 2.5, either, None, SAMPLE.anything)
    text = json.dumps(to_json(sample))
    assert from_json(Sample, json.loads(text), "the sample") == sample


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/o/p.git", "https://github.com/o/p"),
        ("https://user:secret@github.com/o/p", "https://github.com/o/p"),
        ("https://git.example.org:8443/o/p/", "https://git.example.org:8443/o/p"),
        ("git@github.com:o/p.git", "https://github.com/o/p"),
        ("ssh://git@gitlab.example.org:2222/group/o/p.git", "https://gitlab.example.org/group/o/p"),
        ("", None),
        ("/srv/git/p", None),
        ("../p", None),
        ("file:///srv/git/p", None),
        ("http://127.0.0.1:3000/o/p", None),
        ("https://build/o/p", None),
        ("https://github.com/", None),
    ],
)
def test_a_record_names_where_its_commit_is_found_and_no_user_and_no_path_of_a_machine(
    remote: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(revision.REPOSITORY_VARIABLE, raising=False)
    monkeypatch.setattr(revision, "_git", lambda *_: remote or None)
    assert revision.repository() == address
    monkeypatch.setattr(revision, "_git", lambda *_: None)
    monkeypatch.setenv(revision.REPOSITORY_VARIABLE, remote)
    assert revision.repository() == address


EVIDENCE = sorted((Path(__file__).parents[2] / "reports" / "evidence" / "h200").glob("*.json"))


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_the_record_of_a_gpu_run_carries_its_commit(path: Path) -> None:
    environment = json.loads(path.read_text())["environment"]
    assert re.fullmatch("[0-9a-f]{7,40}", environment["commit"])
