"""Contract mutants: a sample is seen, what survives does so for the reason said, and the score."""

import random
from dataclasses import replace
from typing import Any

import pytest
from paritybit.harness.campaigns.executor import Ended
from paritybit.harness.campaigns.mutants import hunting
from paritybit.harness.campaigns.mutants.hunting import (
    End,
    Hunted,
    MutantHunt,
    MutatedTrial,
    Sighting,
    hunt_mutant,
)
from paritybit.harness.campaigns.mutants.score import mutant_figures
from paritybit.harness.campaigns.mutants.survivors import SURVIVORS, survivor
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, MALFORMED, OK, code_of
from paritybit.subjects.mutants.mutant import Mistake, Mutant, mutants
from paritybit.subjects.toggles import LocationScheme

from paritybit.__main__ import main

EVERYTHING = list(mutants())

CHEAP = "cpu_graph"
"""A runner whose engine is captured at once."""


@pytest.fixture(autouse=True)
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try mutants on one model and size, whose clean build is captured once for each scheme."""
    usual = hunting.trial_of
    one: dict[str, Any] = {"preset": "gpt_oss", "dtype": "float32", "page_size": 4}
    one |= {"buckets": (4,), "token_buckets": (12,)}

    def of_one_model(mutant: Mutant, device: str) -> MutatedTrial:
        return replace(usual(mutant, device), **one)

    monkeypatch.setattr(hunting, "trial_of", of_one_model)


def sample() -> list[Mutant]:
    """Return a mutant of each mistake on the cheapest runner, and one on the others."""
    draw = random.Random(11)
    must_be_seen = [mutant for mutant in EVERYTHING if survivor(mutant) is None]
    cheap = [mutant for mutant in must_be_seen if mutant.runner == CHEAP]
    chosen = [
        draw.choice([mutant for mutant in cheap if mutant.mistake is mistake])
        for mistake in Mistake
        if mistake is not Mistake.LAST_NOT_RESET
    ]
    others = [mutant for mutant in must_be_seen if mutant.runner != CHEAP]
    return chosen + draw.sample(others, 1)


@pytest.mark.parametrize("mutant", sample(), ids=lambda mutant: mutant.name)
def test_a_mutant_is_seen(mutant: Mutant) -> None:
    hunted = hunt_mutant(MutantHunt(mutant, (0,), 10))
    assert [sighting.end for sighting in hunted.sightings] == [End.SEEN]


HARD = [
    ("eagle_draft_extend", "num_accept_tokens", Mistake.LAST_NOT_RESET),
    (CHEAP, "seq_lens", Mistake.WRONG_DTYPE),
]
"""What shows in one state alone, or in no value.

A full bucket must lag by fewer tokens than padding has; a copy converts as another runner's may.
"""


@pytest.mark.parametrize("key", HARD, ids=" ".join)
def test_a_mutant_that_takes_a_state_of_its_own_is_seen(key: tuple[str, str, Mistake]) -> None:
    hunted = hunt_mutant(MutantHunt(first_of(*key), (0,), 10))
    assert [sighting.end for sighting in hunted.sightings] == [End.SEEN]


def first_of(runner: str, buffer: str, mistake: Mistake) -> Mutant:
    """Return a mutant under the first location scheme that has it."""
    return next(
        mutant
        for mutant in EVERYTHING
        if (mutant.runner, mutant.buffer, mutant.mistake) == (runner, buffer, mistake)
    )


REASONED = [
    (CHEAP, "seq_lens", Mistake.LAST_NOT_RESET),
    ("eagle_draft", "mrope_positions", Mistake.LATE),
    ("decode", "encoder_lens", Mistake.WRONG_FILL),
]
"""A survivor for each text of the table."""


@pytest.mark.parametrize("key", REASONED, ids=" ".join)
def test_a_survivor_survives_for_the_reason_said(key: tuple[str, str, Mistake]) -> None:
    hunted = hunt_mutant(MutantHunt(first_of(*key), (0,), 2))
    assert [sighting.end for sighting in hunted.sightings] == [End.CANNOT_MATTER]


def test_each_reason_of_the_table_is_tried() -> None:
    """And each survivor is a mutant that there is."""
    assert {SURVIVORS[key].because for key in REASONED} == {
        entry.because for entry in SURVIVORS.values()
    }
    assert all(first_of(*key) for key in SURVIVORS)


def test_a_reason_that_does_not_hold_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that changes what the buffer holds is not equivalent, seen or not."""
    mutant = first_of(CHEAP, "positions", Mistake.LATE)
    equivalent = SURVIVORS[REASONED[0]]
    monkeypatch.setattr(hunting, "survivor", lambda _: equivalent)
    monkeypatch.setattr(hunting, "STEP_PROPERTIES", frozenset())
    hunted = hunt_mutant(MutantHunt(mutant, (0,), 1))
    assert [sighting.end for sighting in hunted.sightings] == [End.SURVIVED]


def test_what_the_clean_build_violates_too_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = first_of(CHEAP, "positions", Mistake.REBOUND)
    monkeypatch.setattr(hunting, "violated_when_clean", lambda *_: frozenset({"kv_parity"}))
    hunted = hunt_mutant(MutantHunt(mutant, (0,), 1))
    assert [sighting.end for sighting in hunted.sightings] == [End.CLEAN_IS_RED]


def ended(mistake: Mistake, end: End | None) -> Ended[MutantHunt, Hunted]:
    """Return how the hunt of a mutant ended; without an end it failed."""
    hunt = MutantHunt(Mutant("decode", LocationScheme.MEMO, "positions", mistake), (0, 1), 50)
    if end is None:
        return Ended(hunt, 1.0, error="Traceback\nOSError: gone")
    return Ended(hunt, 1.0, Hunted((Sighting(0, End.SEEN, 1, ("x",)), Sighting(1, end, 2))))


SCORES: dict[str, tuple[list[End | None], int]] = {
    "all are seen": ([End.SEEN, End.SEEN], OK),
    "one cannot matter": ([End.SEEN, End.CANNOT_MATTER], OK),
    "one survives one seed": ([End.SEEN, End.SURVIVED], FINDING),
    "one is seen by what is red anyway": ([End.SEEN, End.CLEAN_IS_RED], FINDING),
    "one failed": ([End.SEEN, None], CANNOT_RUN),
    "one failed, one survived": ([End.SURVIVED, None], FINDING),
}


@pytest.mark.parametrize("case", SCORES)
def test_the_exit_code_says_whether_a_mutant_survived(case: str) -> None:
    ends, code = SCORES[case]
    pairs = zip((Mistake.LATE, Mistake.FROZEN), ends, strict=True)
    found = mutant_figures([ended(*pair) for pair in pairs], 2, 3.0, {})
    assert code_of(found) == code


def test_what_was_not_hunted_is_not_as_hoped() -> None:
    found = mutant_figures([ended(Mistake.LATE, End.SEEN)], 2, 3.0, {})
    assert not found["as_hoped"]
    assert "1 of 2 mutants detected" in found["message"]


def test_the_command_hunts_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """And writes the record, interrupted or not."""
    few = [first_of(CHEAP, "positions", mistake) for mistake in (Mistake.LATE, Mistake.REBOUND)]
    monkeypatch.setattr("paritybit.harness.cli.measure.mutants", lambda: [*few, EVERYTHING[0]])
    record = tmp_path / "mutants.json"
    words = ["mutants", "--runner", CHEAP, "--seeds", "1", "--examples", "5", "--workers", "1"]
    assert main([*words, "--device", "cpu", "--record", str(record)]) == OK
    assert "2 of 2 mutants detected with every seed" in capsys.readouterr().out
    assert '"planned": 2' in record.read_text()
    assert main(["mutants", "--runner", "nothing"]) == MALFORMED
