"""The fault classes: which observation shows which, and what verdicts they come to."""

from dataclasses import replace

import pytest
import torch

from harness.checks.of_steps.hermetic_replay import FreshReplay
from harness.checks.property import judge
from harness.checks.table import PROPERTIES, STATE_PROPERTIES
from harness.engines.faults import FAULTS, Evidence, Verdict, faults_shown, overall
from harness.lockstep.observation import Observation
from properties.support.harness.observations import FREE, arena_of, idle, observation
from reference.config import Kind, Role
from subjects.protocol import LocationDtypes

EVERY = frozenset(PROPERTIES)


def stray_write(kind: Kind) -> Observation:
    """Return a padded replay that wrote a slot that nobody owns."""
    found = observation()
    arena_of(found.graph, Role.TARGET, kind)[:, :, FREE] += 1.0
    return found


def other_reads(row: int) -> Observation:
    """Return a padded replay of which a row was told to read another slot than without history."""
    found = observation()
    assert found.replay is not None
    rows = [list(slots) for slots in found.replay.reads["full"]]
    rows[row] = [FREE]
    fresh = FreshReplay(found.replay.defined, {"full": rows})
    return replace(found, extra={**found.extra, "hermetic_replay": fresh})


def other_dtype() -> Observation:
    """Return a replay whose SWA locations are of another dtype than the translation's."""
    found = observation()
    assert found.facts is not None
    locations = LocationDtypes(torch.int64, torch.int32, None)
    return replace(found, facts=replace(found.facts, locations=locations))


def unpadded(found: Observation) -> Observation:
    """Return an observation as if its bucket had been full."""
    assert found.replay is not None
    return replace(found, replay=replace(found.replay, padded=False))


def shown_by(found: Observation) -> set[str]:
    """Return the fault classes that a step's violations show."""
    violations = judge(PROPERTIES.values(), found)
    return {fault for violation in violations for fault in faults_shown(violation.property, found)}


def test_each_fault_class_names_a_property_and_what_else_it_breaks() -> None:
    for fault in FAULTS.values():
        assert fault.property in PROPERTIES
        assert fault.follows <= PROPERTIES.keys() - {fault.property}


def test_a_right_step_shows_no_fault_class() -> None:
    assert judge(PROPERTIES.values(), observation()) == ()
    assert shown_by(idle()) == set()


def test_a_stray_write_to_the_swa_sub_pool_shows_swa_pad_and_no_other() -> None:
    assert shown_by(stray_write(Kind.SWA)) == {"swa_pad"}


@pytest.mark.parametrize(
    "found",
    [stray_write(Kind.FULL), unpadded(stray_write(Kind.SWA))],
    ids=["full", "without padding"],
)
def test_a_stray_write_of_another_kind_is_explained_by_no_fault_class(found: Observation) -> None:
    assert "write_frame" in {violation.property for violation in judge(PROPERTIES.values(), found)}
    assert shown_by(found) == set()


def test_another_slot_that_a_padded_row_reads_shows_req_pool_pad() -> None:
    assert shown_by(other_reads(row=2)) == {"req_pool_pad"}


def test_another_slot_that_a_live_row_reads_is_explained_by_no_fault_class() -> None:
    found = other_reads(row=0)
    violated = {violation.property for violation in judge(PROPERTIES.values(), found)}
    assert violated == {"hermetic_replay"}
    assert shown_by(found) == set()


def test_locations_of_another_dtype_show_swa_int64() -> None:
    assert shown_by(other_dtype()) == {"swa_int64"}


def evidence_of(*steps: Observation, asked: frozenset[str] = EVERY) -> Evidence:
    """Return the evidence of some steps of the decode runner."""
    evidence = Evidence("decode", set(asked))
    for found in steps:
        evidence.see(found, asked)
        for violation in judge(PROPERTIES.values(), found):
            faults = faults_shown(violation.property, found)
            evidence.add(violation.property, violation.message, faults)
    return evidence


def verdicts(evidence: Evidence) -> dict[str, Verdict]:
    """Return the verdict on each fault class."""
    return {judged.fault: judged.verdict for judged in evidence.judge()}


def test_a_fault_class_is_present_once_shown_and_absent_if_nothing_that_could_shows_it() -> None:
    found = verdicts(evidence_of(observation(), stray_write(Kind.SWA)))
    assert found == {
        "swa_pad": Verdict.PRESENT,
        "swa_int64": Verdict.ABSENT,
        "req_pool_pad": Verdict.ABSENT,
    }


def test_what_was_never_observed_padded_is_undecided() -> None:
    evidence = evidence_of(unpadded(observation()))
    assert verdicts(evidence)["swa_pad"] is Verdict.UNDECIDED
    assert overall([judged.to_json() for judged in evidence.judge()], "swa_pad") == "undecided"


def test_a_runner_that_hands_no_locations_over_has_nowhere_for_swa_int64_to_live() -> None:
    found = observation()
    assert found.facts is not None
    bare = replace(found, facts=replace(found.facts, locations=None))
    evidence = evidence_of(bare)
    assert verdicts(evidence)["swa_int64"] is Verdict.ABSENT
    assert any("hands no SWA" in judged.message for judged in evidence.judge())


def test_a_fault_class_whose_property_was_not_asked_has_no_verdict() -> None:
    evidence = evidence_of(observation(), asked=frozenset({"index_contract"}))
    assert set(verdicts(evidence)) == {"swa_int64"}


def test_what_no_fault_class_explains_is_a_finding() -> None:
    (finding,) = evidence_of(other_reads(row=0)).findings()
    assert "decode violates hermetic_replay" in finding
    findings = evidence_of(stray_write(Kind.FULL)).findings()
    assert {"write_frame", "kv_parity"} == {words.split()[2].strip(",") for words in findings}


def test_what_follows_from_a_fault_class_that_was_shown_is_no_finding() -> None:
    shown = stray_write(Kind.SWA)
    violated = {violation.property for violation in judge(PROPERTIES.values(), shown)}
    assert violated & STATE_PROPERTIES == {"write_frame", "kv_parity"}
    assert evidence_of(shown).findings() == []


@pytest.mark.parametrize(
    ("runner", "expected"),
    [("decode", Verdict.PRESENT), ("piecewise", Verdict.UNDECIDED), (None, Verdict.PRESENT)],
)
def test_a_verdict_is_of_one_runner_or_of_all(runner: str | None, expected: Verdict) -> None:
    judged = [entry.to_json() for entry in evidence_of(stray_write(Kind.SWA)).judge()]
    assert overall(judged, "swa_pad", runner) == expected
