"""Hypothesis strategies for schedules. A schedule is a list of steps, and any list is valid.

Weights only make deep states more likely. `coverage` counts the states, and tests assert them.
"""

from collections.abc import Iterable
from itertools import chain

from hypothesis import strategies as st
from paritybit.harness.schedules.boundaries import FACTORS, BoundaryScene, Ground, scenes
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Idle,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
    idle_modes,
)
from paritybit.reference.batch import Mode
from paritybit.reference.config import DRAFT_STEPS, ModelConfig

LONGEST = 40
"""Largest number of steps of a generated schedule, after its opening admissions."""

SCENES = 3
"""Number of scenes in a schedule that begins with scenes. The first has each bucket once."""

SEEDS = 8
"""Number of schedule seeds. Prompts, payloads, slot order and initial bytes follow from one."""

FAVOUR = 3
"""How many times more often than others the steps of the runner under test are drawn."""


SPECULATIVE = frozenset(Mode) - {Mode.EXTEND, Mode.DECODE}


def schedules(ground: Ground) -> st.SearchStrategy[Schedule]:
    """Return a strategy of schedules for an engine. The simplest is drawn first.

    It has scenes that fill all buckets.
    """
    config, max_bs = ground.config, max(ground.buckets)
    step, admit = _step(ground), _admit(config)
    opening = st.lists(admit, max_size=max_bs).map(tuple)
    short, long = (
        st.lists(step, min_size=least, max_size=LONGEST).map(_flat) for least in (1, LONGEST // 2)
    )
    played = _scenes(ground, SCENES)
    going_on = st.tuples(played, st.one_of(short, short, long)).map(_flat)
    free = st.tuples(opening, st.one_of(short, long, long)).map(_flat)
    return st.builds(Schedule, st.one_of(going_on, free, free), st.integers(0, SEEDS - 1))


def _scenes(ground: Ground, count: int) -> st.SearchStrategy[tuple[Step, ...]]:
    """Return a strategy of `count` scenes. The simplest ones differ in every factor."""
    found = st.tuples(*(_scene(ground, place) for place in range(count)))
    return found.map(lambda chosen: scenes(ground, chosen))


def _scene(ground: Ground, turn: int) -> st.SearchStrategy[BoundaryScene]:
    """Return a strategy of scenes. The simplest one has the value number `turn` of each factor."""
    factors = (ground.sizes[::-1], *FACTORS.values())
    drawn = [st.sampled_from(values[turn:] + values[:turn]) for values in factors]
    return st.tuples(*drawn).map(BoundaryScene._make).filter(ground.fits)


def _flat(parts: Iterable[Iterable[Step]]) -> tuple[Step, ...]:
    return tuple(chain(*parts))


def _admit(config: ModelConfig) -> st.SearchStrategy[Admit]:
    near_window = st.integers(max(1, config.window - 3), config.window + 1)
    prompt = st.one_of(st.integers(1, 4), near_window, st.integers(1, 3 * config.window))
    return st.builds(Admit, prompt, _chunk(config))


def _chunk(config: ModelConfig) -> st.SearchStrategy[int]:
    whole = st.just(2 * config.window)
    return st.one_of(whole, whole, st.integers(1, config.window))


def _step(ground: Ground) -> st.SearchStrategy[tuple[Step, ...]]:
    """Return a strategy of steps, rounds and scenes, drawn according to their weights."""
    config, modes, under_test = ground.config, ground.modes, ground.mode
    max_bs, admit = max(ground.buckets), _admit(ground.config)
    pick = st.integers(0, max_bs - 1)
    some = st.lists(pick, min_size=1, max_size=max_bs).map(tuple)
    first = st.integers(1, max_bs).map(lambda count: tuple(range(count)))
    idle = idle_modes(modes)
    own_idle = [st.just(Idle(idle.index(under_test)))] * FAVOUR if under_test in idle else []
    many = st.one_of(some, first)
    accept = st.integers(0, DRAFT_STEPS)
    by_mode: dict[Mode, list[tuple[int, st.SearchStrategy[Step]]]] = {
        Mode.EXTEND: [(3, admit), (1, st.builds(Extend, pick, _chunk(config)))],
        Mode.DECODE: [(2, st.builds(Decode, some)), (2, st.builds(Decode, first))],
        Mode.TARGET_VERIFY: [(2, st.builds(Verify, many, accept))],
        Mode.DRAFT: [(2, st.builds(Draft, many))],
        Mode.FROZEN_DRAFT: [(2, st.builds(Draft, many))],
        Mode.DRAFT_EXTEND: [(3, st.builds(DraftExtend, many))],
    }
    weighted: list[tuple[int, st.SearchStrategy[Step]]] = [
        (2, admit),
        *(
            (weight * (FAVOUR if mode is under_test else 1), kind)
            for mode, kinds in by_mode.items()
            if mode in modes or mode is Mode.EXTEND
            for weight, kind in kinds
        ),
        (1, st.builds(Finish, pick)),
        (2, st.builds(Idle, pick)),
        *((1, one) for one in own_idle),
        (2, st.builds(Evict, pick)),
        (2, st.builds(Retract, pick)),
        (3, st.builds(Resume, pick)),
    ]
    alone = [st.tuples(kind) for weight, kind in weighted for _ in range(weight)]
    round_weight = 2 * FAVOUR if under_test in SPECULATIVE else 2
    # One round of speculation: catch up, draft twice, and verify.
    speculation = st.tuples(
        st.just(DraftExtend(tuple(range(max_bs)))),
        st.builds(Draft, first),
        st.builds(Draft, first),
        st.builds(Verify, first, accept),
    )
    rounds = [speculation] * round_weight if Mode.TARGET_VERIFY in modes else []
    # An engine may idle between any two forwards, even if no slot changes its owner.
    idling = [st.tuples(admit, st.builds(Idle, pick))] * 2 if idle else []
    idling += [st.tuples(admit, one) for one in own_idle]
    kinds: list[st.SearchStrategy[tuple[Step, ...]]] = [*alone, *rounds, *idling]
    # When it schedules a forward, an engine evicts what the next queries cannot see.
    evicting = first.map(_decode_and_evict)
    kinds += [_scenes(ground, 1), *([evicting] * (2 * FAVOUR if under_test is Mode.DECODE else 2))]
    return st.sampled_from(range(len(kinds))).flatmap(kinds.__getitem__)


def _decode_and_evict(rows: tuple[int, ...]) -> tuple[Step, ...]:
    steps: tuple[Step, ...] = (Decode(rows), *map(Evict, rows))
    return steps * 2
