"""The report about a violation: a table of bugs, and what each report says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.property import Property
from paritybit.harness.checks.table import CHEAP_PROPERTIES, PROPERTIES
from paritybit.harness.explain import suspects
from paritybit.harness.explain.facts import Explanation, ResetOutcome
from paritybit.harness.explain.recorded import NO_RESET, RecordedForward, Reset
from paritybit.harness.explain.report import explanation, observe
from paritybit.harness.explain.suspects import fewest
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import load
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Evict,
    Prefill,
    Schedule,
)
from paritybit.subjects.buffers import StaticInputs

from paritybit.places import SOURCES
from properties.support.places import CORPUS, ROOT


class Expected(NamedTuple):
    """What a report says: property, step, op, layer, row and slot, suspect, and file."""

    property_id: str
    step: int
    place: tuple[str, int | None, int | None, int | None] | None
    cause: str | None
    elements: tuple[str, ...]
    file: str | None


def report(found: Explanation | None) -> Expected:
    """Return the report of an explanation."""
    assert found is not None
    cause, first = found.cause, found.difference
    return Expected(
        found.property_id,
        found.at.step,
        None if first is None else (first.op, first.layer, first.row, first.slot),
        None if cause is None else cause.name,
        () if cause is None else tuple(one.name for one in cause.elements),
        found.sources[0].file if found.sources else None,
    )


INPUTS, DECODE, ACCESS = "static inputs", "subjects/runners/decode.py", "subjects/access.py"
PREFILL = "subjects/runners/prefill.py"
LOCATION, ROW = "out_cache_loc_swa[1]", ("req_pool_indices[1]",)

CASES: dict[str, Expected] = {
    "swa_pad@decode": Expected("kv_parity", 3, ("store_kv", 0, 1, 12), INPUTS, (LOCATION,), DECODE),
    "swa_int64@decode": Expected("index_contract", 0, None, None, (), PREFILL),
    "swa_loc_unset@decode": Expected("captured_path", 1, None, None, (), None),
    "shared_buffer_dtype@decode": Expected("index_contract", 0, None, None, (), DECODE),
    "req_pool_pad@decode": Expected(
        "hermetic_replay", 3, ("attention", 0, 1, None), INPUTS, ROW, DECODE
    ),
    "loc_memo_warning@decode": Expected("log_hygiene", 1, None, None, (), None),
    "loc_memo_capture@decode": Expected(
        "kv_parity", 1, ("store_kv", 1, 0, 0), "capture", (), ACCESS
    ),
    "spec_page_table_untranslated@target_verify": Expected(
        "logits_parity",
        1,
        ("attention", 0, 0, None),
        None,
        (),
        ACCESS,
    ),
}
"""The committed cases of bugs that shipped in an engine."""


@pytest.mark.parametrize("name", CASES)
def test_a_report_says_what_differs_and_which_suspect_explains_it(name: str, device: str) -> None:
    case = load(CORPUS / f"{name}.json", Case)
    player = SchedulePlayer(replace(case.trial, device=device), PROPERTIES, records_ops=True)
    found = explanation(observe(player, case.schedule), case.target)
    assert report(found) == CASES[name]


ADMIT = Admit(0, 0)
BUGS: dict[str, tuple[Schedule, Expected]] = {
    "request_table_unwritten@decode": (
        Schedule((ADMIT, Decode((0,)))),
        Expected("read_frame", 1, None, "index tables", ("req_to_token[0, 0]",), None),
    ),
    "evicts_by_chunk@piecewise": (
        Schedule((Admit(5, 5), Evict(0), Prefill((0,), 0))),
        Expected(
            "kv_parity",
            2,
            ("store_kv", 0, 0, 71),
            "index tables",
            ("full_to_swa_index_mapping[63]",),
            ACCESS,
        ),
    ),
    "plan_by_host_address@decode": (
        Schedule((ADMIT, Decode((0,)), Decode((0,)))),
        Expected("logits_parity", 2, ("attention", 0, 0, None), "engine state", (), ACCESS),
    ),
}
"""Bugs of the catalogue for further suspects, each with a schedule that shows it."""


@pytest.mark.parametrize("name", BUGS)
def test_each_suspect_explains_a_bug(name: str, device: str) -> None:
    bug, _, runner = name.partition("@")
    schedule, expected = BUGS[name]
    trial = TrialConfig(runner, device=device).with_bug(bug)
    player = SchedulePlayer(trial, CHEAP_PROPERTIES | {expected.property_id}, records_ops=True)
    found = explanation(observe(player, schedule), expected.property_id)
    assert report(found) == expected


SWA_PAD = Schedule((Admit(1, 16), Admit(2, 16), Decode((0, 1)), Decode((0,))))
"""Violates kv_parity in its last forward, with swa_pad switched on."""


def swa_pad(device: str) -> Explanation:
    """Return the report about swa_pad."""
    trial = TrialConfig(device=device).with_bug("swa_pad")
    player = SchedulePlayer(trial, records_ops=True)
    found = explanation(observe(player, SWA_PAD), "kv_parity")
    assert found is not None
    return found


def test_the_proof_leads_from_the_slot_to_the_bits(device: str) -> None:
    found = swa_pad(device)
    slot = found.slot
    assert slot is not None and found.difference is not None
    assert found.proof[:3] == (
        f"Target swa slot {slot.slot} belongs to request 1 and was last written in step 2 by "
        "decode's row 1 for request 1.",
        "Then step 3 runs decode's graph for bucket 2 with 1 live rows, and padded row 1 stores at "
        f"slot {slot.slot} in layer {found.difference.layer}.",
        f"But out_cache_loc_swa[1] = {slot.slot} was left there by step 2 (decode, row 1 for "
        "request 1); expected 0. With out_cache_loc_swa[1] = 0, and nothing else changed, "
        "kv_parity holds.",
    )
    assert found.proof[3].endswith(f"expected {found.difference.eager_bits}.")


def test_a_report_has_the_line_of_the_contract_row_and_those_that_call_the_op(device: str) -> None:
    row, *called = swa_pad(device).sources
    line = (ROOT / row.file).read_text().splitlines()[row.line - 1]
    assert line.strip().startswith('reset("out_cache_loc_swa"')
    assert called[0].what == "store_kv is called in attend"
    assert {one.file for one in called} >= {DECODE, ACCESS}


def test_a_reset_that_fails_is_no_evidence(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    again = RecordedForward.again

    def failing(recorded: RecordedForward, reset: Reset = NO_RESET, *_: Any) -> Observation | None:
        return again(recorded) if reset == NO_RESET else None

    monkeypatch.setattr(RecordedForward, "again", failing)
    found = swa_pad(device)
    assert found.cause is None
    assert {one.outcome for one in found.suspects} == {"fails", "nothing to reset"}


def test_a_violation_that_does_not_repeat_has_no_cause(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trial shows anything if the step is right without a reset after the last one."""
    outcome_of, resets = suspects.outcome_of, list[Reset]()

    def forgetting(recorded: RecordedForward, rule: Property, reset: Reset) -> ResetOutcome:
        resets.append(reset)
        if reset == NO_RESET and len(resets) > 1:
            return "holds"
        return outcome_of(recorded, rule, reset)

    monkeypatch.setattr(suspects, "outcome_of", forgetting)
    found = swa_pad(device)
    assert (found.suspects, found.cause, found.repeats) == ((), None, False)
    assert "from the same bytes, the step does not violate it" in found.proof[2]


@pytest.mark.parametrize(
    ("needed", "found"), [({3}, [3]), ({1, 4}, [1, 4]), ({0, 1, 2, 3, 4}, [0, 1, 2, 3, 4])]
)
def test_no_part_of_the_smallest_reset_can_be_left_out(needed: set[int], found: list[int]) -> None:
    def holds(some: Sequence[int]) -> bool:
        return needed <= set(some)

    assert fewest(range(5), holds) == found


RAISES = "def __init__(*_, **__):\n    raise IndexError('no buffer')\n"


def test_an_engine_that_cannot_be_captured_is_explained_by_the_lines_that_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code: dict[str, Any] = {}
    exec(compile(RAISES, str(SOURCES / "subjects" / "buffers.py"), "exec"), code)
    monkeypatch.setattr(StaticInputs, "__init__", code["__init__"])
    found = explanation(observe(SchedulePlayer(TrialConfig()), SWA_PAD), None)
    assert found is not None and found.property_id == "no_crash"
    assert (found.sources[0].file, found.sources[0].line) == ("subjects/buffers.py", 2)
    assert "the engine could not be captured: no buffer" in found.proof[1]
