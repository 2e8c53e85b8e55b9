"""The fault classes: which observation shows which, and what verdicts they come to."""

from dataclasses import replace

import pytest
import torch
from paritybit.harness.checks.of_steps.hermetic_replay import FreshReplay
from paritybit.harness.checks.property import judge
from paritybit.harness.checks.table import PROPERTIES, STATE_PROPERTIES
from paritybit.harness.engines import statics
from paritybit.harness.engines.adapters.table import ADAPTERS
from paritybit.harness.engines.faults import Evidence, Verdict, faults_shown, overall
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.config import Kind, Role
from paritybit.subjects.protocol import LocationDtypes

from properties.support.harness.observations import FREE, arena_of, idle, observation

EVERY = frozenset(PROPERTIES)
STALE = 3


def right(**tails: int) -> Observation:
    """Return a right padded replay of an engine; named static inputs hold a value in their tail.

    Before it, rows that are padded now held an earlier batch's values.
    """
    found = observation()
    assert found.replay is not None and found.eager.batch is not None
    batch = found.eager.batch
    given = {"req_pool_indices": batch.req_pool_indices, "out_cache_loc_swa": batch.out_cache_loc}
    static, used = {}, {}
    for name, live in given.items():
        padded = torch.full((found.replay.bucket - len(live),), tails.get(name, 0))
        static[name] = torch.cat([live, padded])
        used[name] = torch.full_like(static[name], STALE)
    return replace(
        found,
        static=static,
        replay=replace(found.replay, given=given),
        extra={**found.extra, statics.RUN: used},
    )


def stray_write(*kinds: Kind) -> Observation:
    """Return a padded replay that wrote slots that nobody owns, its SWA locations stale."""
    found = right(out_cache_loc_swa=STALE)
    for kind in kinds:
        arena_of(found.graph, Role.TARGET, kind)[:, :, FREE] += 1.0
    return found


def other_reads(row: int, tail: int = STALE) -> Observation:
    """Return a padded replay of which a row was told to read another slot than without history."""
    found = right(req_pool_indices=tail)
    assert found.replay is not None
    rows = [list(slots) for slots in found.replay.reads["full"]]
    rows[row] = [FREE]
    fresh = FreshReplay(found.replay.defined, {"full": rows})
    return replace(found, extra={**found.extra, "hermetic_replay": fresh})


def other_dtype() -> Observation:
    """Return a replay whose SWA locations are of another dtype than the translation's."""
    found = right()
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


@pytest.mark.parametrize("engine", ADAPTERS)
def test_each_fault_class_names_properties_and_what_else_it_breaks(engine: str) -> None:
    faults = ADAPTERS[engine].faults.values()
    assert faults
    for fault in faults:
        assert fault.properties <= PROPERTIES.keys()
        assert fault.follows <= PROPERTIES.keys() - fault.properties


def test_a_right_step_shows_no_fault_class() -> None:
    assert judge(PROPERTIES.values(), right()) == ()
    assert shown_by(idle()) == set()


def test_a_stray_write_to_the_swa_sub_pool_shows_swa_pad_and_no_other() -> None:
    assert shown_by(stray_write(Kind.SWA)) == {"swa_pad"}


@pytest.mark.parametrize(
    "found",
    [
        stray_write(Kind.FULL),
        stray_write(Kind.FULL, Kind.SWA),
        unpadded(stray_write(Kind.SWA)),
        replace(stray_write(Kind.SWA), static=right().static),
    ],
    ids=["full", "both", "without padding", "SWA locations reset"],
)
def test_a_stray_write_of_another_kind_is_explained_by_no_fault_class(found: Observation) -> None:
    assert "write_frame" in {violation.property for violation in judge(PROPERTIES.values(), found)}
    assert shown_by(found) == set()


def test_another_slot_that_a_padded_row_reads_shows_req_pool_pad() -> None:
    assert shown_by(other_reads(row=2)) == {"req_pool_pad"}


@pytest.mark.parametrize(("row", "tail"), [(0, STALE), (2, 0)])
def test_reads_that_request_rows_do_not_explain_are_explained_by_no_fault_class(
    row: int, tail: int
) -> None:
    found = other_reads(row, tail)
    violated = {violation.property for violation in judge(PROPERTIES.values(), found)}
    assert violated == {"hermetic_replay"}
    assert shown_by(found) == set()


def test_locations_of_another_dtype_show_swa_int64() -> None:
    assert shown_by(other_dtype()) == {"swa_int64"}


def evidence_of(
    *steps: Observation, asked: frozenset[str] = EVERY, runner: str = "decode"
) -> Evidence:
    """Return the evidence of some steps of a runner."""
    evidence = Evidence(runner, asked=set(asked))
    for found in steps:
        evidence.see(found, asked)
        for violation in judge(PROPERTIES.values(), found):
            faults = faults_shown(violation.property, found)
            evidence.add(violation.property, violation.message, faults)
    return evidence


def verdicts(evidence: Evidence) -> dict[str, Verdict]:
    """Return the verdict on each fault class."""
    return {judged.fault: judged.verdict for judged in evidence.judge()}


def unreached(found: Observation) -> Observation:
    """Return an observation before which no padded row held anything of an earlier batch."""
    clean = {name: torch.zeros_like(held) for name, held in found.static.items()}
    return replace(found, extra={**found.extra, statics.RUN: clean})


def test_a_fault_class_is_present_once_shown_and_absent_where_it_would_have_shown() -> None:
    found = verdicts(evidence_of(right(), stray_write(Kind.SWA)))
    assert found == {
        "swa_pad": Verdict.PRESENT,
        "swa_int64": Verdict.ABSENT,
        "req_pool_pad": Verdict.ABSENT,
    }


@pytest.mark.parametrize("found", [unpadded(right()), unreached(right())])
def test_a_fault_whose_state_was_never_reached_is_undecided(found: Observation) -> None:
    evidence = evidence_of(found)
    assert verdicts(evidence)["swa_pad"] is Verdict.UNDECIDED
    judged = [one.to_json() for one in evidence.judge()]
    assert overall(judged, (), "swa_pad") == "undecided"


def test_a_runner_without_what_a_fault_is_about_has_nowhere_for_it() -> None:
    found = right()
    assert found.facts is not None and found.replay is not None
    bare = replace(found, facts=replace(found.facts, locations=None), static={})
    bare = replace(bare, replay=replace(found.replay, given={}))
    evidence = evidence_of(bare, runner="breakable")
    assert set(verdicts(evidence).values()) == {Verdict.ABSENT}
    assert any("passes on no SWA" in judged.message for judged in evidence.judge())
    # Every other runner has static request rows, whatever the engine calls them.
    judged = {one.fault: one for one in evidence_of(bare).judge()}
    assert judged["req_pool_pad"].verdict is Verdict.UNDECIDED
    assert "static request rows under a known name" in judged["req_pool_pad"].message
    assert judged["swa_pad"].verdict is Verdict.ABSENT


def test_a_fault_class_of_which_no_property_was_asked_has_no_verdict() -> None:
    evidence = evidence_of(right(), asked=frozenset({"index_contract"}))
    assert set(verdicts(evidence)) == {"swa_int64"}


def test_every_violation_is_a_finding_and_no_class_names_what_it_does_not_explain() -> None:
    (finding,) = evidence_of(other_reads(row=0)).findings("gpt_oss")
    assert (finding.property, finding.faults) == ("hermetic_replay", ())
    findings = evidence_of(stray_write(Kind.FULL)).findings("gpt_oss")
    assert {one.property for one in findings} == {"write_frame", "kv_parity"}
    assert not any(one.faults for one in findings)


def test_a_class_whose_evidence_holds_names_what_follows_from_it_too() -> None:
    shown = stray_write(Kind.SWA)
    violated = {violation.property for violation in judge(PROPERTIES.values(), shown)}
    assert violated & STATE_PROPERTIES == {"write_frame", "kv_parity"}
    assert {one.faults for one in evidence_of(shown).findings("gpt_oss")} == {("swa_pad",)}


@pytest.mark.parametrize(
    ("runner", "undecided", "expected"),
    [
        ("decode", (), Verdict.PRESENT),
        ("piecewise", (), Verdict.UNDECIDED),
        (None, (), Verdict.PRESENT),
        (None, ("piecewise",), Verdict.PRESENT),
    ],
)
def test_a_verdict_is_of_one_runner_or_of_all(
    runner: str | None, undecided: tuple[str, ...], expected: Verdict
) -> None:
    judged = [entry.to_json() for entry in evidence_of(stray_write(Kind.SWA)).judge()]
    assert overall(judged, undecided, "swa_pad", runner) == expected


@pytest.mark.parametrize(
    ("runner", "expected"), [(None, Verdict.UNDECIDED), ("decode", Verdict.ABSENT)]
)
def test_a_runner_that_was_not_tried_is_outvoted_by_no_other(
    runner: str | None, expected: Verdict
) -> None:
    judged = [entry.to_json() for entry in evidence_of(right()).judge()]
    assert overall(judged, ("piecewise",), "swa_pad", runner) == expected
