"""The counterexamples of an engine's trial as its record holds them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from paritybit.harness.engines.case import EngineCase
from paritybit.harness.engines.explained.counterexample import Counterexample
from paritybit.harness.records import schema
from paritybit.harness.records.case import dump_json
from paritybit.harness.records.typed_json import from_json, to_json


def recorded(
    cases: Mapping[str, EngineCase], found: Sequence[Counterexample], shown: str
) -> tuple[schema.EngineCounterexample, ...]:
    """Return counterexamples, by the names of their case files, as a record holds them.

    `shown` is the folder of the case files as a replay command names it.
    """
    return tuple(
        _recorded(name, case, seen, shown)
        for name, case in cases.items()
        for seen in found
        if seen.case == case.case
    )


def _recorded(
    name: str, case: EngineCase, seen: Counterexample, shown: str
) -> schema.EngineCounterexample:
    data = case.case.to_json()
    finding = schema.Finding(
        violations=tuple(
            from_json(schema.Violation, one, "a violation") for one in data["violations"]
        ),
        case_file=f"cases/{name}",
        reproduce=shlex.join(["paritybit", "replay", f"{shown}/{name}", "--engine", case.engine]),
        schedule=from_json(schema.Schedule, data["schedule"], "the schedule"),
        timeline=seen.timeline,
        explanation=seen.explanation,
        error=None,
        case=schema.CaseHead(data["format"], data["version"], data["target"], data["seed"]),
    )
    trial = from_json(schema.TrialSettings, to_json(case.case.trial), "the trial")
    return schema.EngineCounterexample(trial, finding, dump_json(case.to_json()))


def read(record: Mapping[str, Any]) -> tuple[schema.EngineCounterexample, ...]:
    """Return the counterexamples of a record. Raises ValueError for one that is not whole."""
    return tuple(
        from_json(schema.EngineCounterexample, one, "a counterexample")
        for one in record["counterexamples"]
    )
