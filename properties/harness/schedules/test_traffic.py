"""Traffic: what is committed, and what becomes of it as schedules."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Finish,
    Schedule,
    Verify,
)
from paritybit.harness.schedules.traffic import REQUESTS, load_trace, traffic_schedules
from paritybit.reference.batch import Mode
from paritybit.reference.config import PRESETS, SPECULATION
from paritybit.subjects.runners import engine_runners

CONFIG = PRESETS["gpt_oss"].tiny
ROOM = TrialConfig().room
ROWS = 8
PIECES = len(load_trace()) // REQUESTS
SPECULATIVE = tuple(mode for mode in Mode if mode not in {Mode.EXTEND, Mode.DECODE})
PLAYED = (
    ("gpt_oss", "decode", Mode.DECODE),
    ("gemma3", "eagle_draft", Mode.DRAFT),
    ("mimo", "frozen_kv_mtp", Mode.FROZEN_DRAFT),
)
"""Where pieces are played: the preset, a runner of the engine, and the mode that is driven."""


def every_piece(under_test: Mode) -> list[Schedule]:
    """Return every piece of the trace, in order."""
    in_order: dict[int, Schedule] = {}
    for piece in traffic_schedules(CONFIG, ROWS, ROOM, PIECES, 0, under_test):
        in_order[piece.seed] = piece
    return [in_order[place] for place in range(PIECES)]


@pytest.fixture(scope="module")
def pieces() -> list[Schedule]:
    """Every piece of the trace, in order, as an engine that decodes meets it."""
    return every_piece(Mode.DECODE)


@pytest.fixture(scope="module")
def speculative() -> list[Schedule]:
    """Every piece of the trace, in order, as an engine that speculates meets it."""
    return every_piece(Mode.TARGET_VERIFY)


def admitted(schedule: Schedule) -> list[int]:
    """Return the prompt lengths in the order of admission."""
    return [step.prompt for step in schedule.steps if isinstance(step, Admit)]


def generated(schedule: Schedule) -> list[int]:
    """Return how many tokens each request is sure to generate, in the order of admission."""
    counts: list[int] = []
    live: list[int] = []
    for step in schedule.steps:
        if isinstance(step, Admit):
            live.append(len(counts))
            counts.append(0)
        elif isinstance(step, Decode):
            for place in step.picks:
                counts[live[place]] += 1
        elif isinstance(step, Verify):
            for place in step.picks:
                counts[live[place]] += 1 + step.accept
        elif isinstance(step, Finish):
            del live[step.pick]
    assert live == []
    return counts


def is_monotone(inputs: Sequence[int], outputs: Sequence[int]) -> bool:
    """Whether a larger input never has the smaller output, and equal inputs have equal ones."""
    ordered = sorted(zip(inputs, outputs, strict=True))
    return all(
        one[1] <= other[1] and (one[0] != other[0] or one[1] == other[1])
        for one, other in pairwise(ordered)
    )


def test_every_request_of_a_piece_is_admitted_and_finishes(
    pieces: list[Schedule], speculative: list[Schedule]
) -> None:
    for piece in (*pieces, *speculative):
        assert len(admitted(piece)) == len(generated(piece)) == REQUESTS


def test_prompts_keep_the_order_of_arrival_and_grow_with_the_context(
    pieces: list[Schedule],
) -> None:
    contexts = [arrival.context for arrival in load_trace()[: REQUESTS * PIECES]]
    prompts = [prompt for piece in pieces for prompt in admitted(piece)]
    assert is_monotone(contexts, prompts)
    assert min(prompts) >= 1
    assert max(prompts) < CONFIG.max_context
    assert min(prompts) < CONFIG.window < max(prompts)


def test_generations_keep_the_order_of_arrival_and_grow_with_the_tokens_generated(
    pieces: list[Schedule],
) -> None:
    tokens = [arrival.generated for arrival in load_trace()[: REQUESTS * PIECES]]
    counts = [count for piece in pieces for count in generated(piece)]
    assert is_monotone(tokens, counts)
    assert 1 <= min(counts) < max(counts)


def test_a_batch_never_outgrows_the_largest_bucket(
    pieces: list[Schedule], speculative: list[Schedule]
) -> None:
    for piece in (*pieces, *speculative):
        widths = [len(step.picks) for step in piece.steps if isinstance(step, Decode | Verify)]
        assert 1 <= min(widths) <= max(widths) <= ROWS


def test_an_engine_that_speculates_meets_the_same_requests_in_the_same_order(
    pieces: list[Schedule], speculative: list[Schedule]
) -> None:
    """And each goes on until it has generated its tokens, of which the last verify may add more."""
    for plain, piece in zip(pieces, speculative, strict=True):
        assert admitted(piece) == admitted(plain)
        for wanted, count in zip(generated(plain), generated(piece), strict=True):
            assert wanted <= count < wanted + SPECULATION.draft_tokens


def test_speculating_requests_catch_up_and_draft_before_each_verify(
    speculative: list[Schedule],
) -> None:
    """All of them at once; how many drafts are to pass runs through all that a tree has."""
    accepted = set()
    for piece in speculative:
        assert not any(isinstance(step, Decode) for step in piece.steps)
        for place, step in enumerate(piece.steps):
            if isinstance(step, Verify):
                before = (DraftExtend(step.picks), Draft(step.picks))
                assert piece.steps[place - 2 : place] == before
                accepted.add(step.accept)
    assert accepted == set(range(SPECULATION.draft_tokens))


def test_every_mode_of_speculation_meets_the_same_pieces(speculative: list[Schedule]) -> None:
    """And an engine that is tried on prefill meets those of one that decodes."""
    for mode in SPECULATIVE:
        assert every_piece(mode) == speculative
    assert every_piece(Mode.EXTEND) == every_piece(Mode.DECODE) != speculative
    assert traffic_schedules(CONFIG, ROWS, ROOM, 2, 0) == every_piece(Mode.DECODE)[0:8:7]


def test_the_same_seed_cuts_the_same_pieces() -> None:
    for seed in (0, 5, 2**31 - 1):
        first = traffic_schedules(CONFIG, ROWS, ROOM, 3, seed)
        assert first == traffic_schedules(CONFIG, ROWS, ROOM, 3, seed)
        assert len({piece.seed for piece in first}) == 3
    assert traffic_schedules(CONFIG, ROWS, ROOM, 3, 0) != traffic_schedules(
        CONFIG, ROWS, ROOM, 3, 1
    )


@pytest.mark.parametrize(("preset", "runner", "under_test"), PLAYED)
def test_a_piece_plays_clean_with_padded_replays(
    preset: str, runner: str, under_test: Mode, device: str
) -> None:
    """Every runner that it drives replays, for batches that fill their bucket and others.

    There is room for every request: were one dropped, later steps would act on another.
    """
    trial = TrialConfig(runner, preset, device=device, page_size=4, buckets=(4, ROWS))
    lockstep = Lockstep(trial, STEP_PROPERTIES)
    piece = traffic_schedules(PRESETS[preset].tiny, ROWS, ROOM, 1, 4, under_test)[0]
    outcome = lockstep.play(piece)
    assert outcome.violations == ()
    assert lockstep.pair.graph.admitted == REQUESTS
    assert not lockstep.pair.graph.running
    assert outcome.events["replay without padding"] > 0
    speculates = under_test in SPECULATIVE
    driven = {Mode.DECODE} if not speculates else set(SPECULATIVE)
    for other in engine_runners(runner):
        if other.mode in driven:
            assert outcome.events[f"{other.name}: padded replay"] > 0
    if speculates:
        assert outcome.events["tree of a draft model"] > 0
