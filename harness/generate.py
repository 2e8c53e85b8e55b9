"""Schedules drawn by Hypothesis: a plain list of steps, so that shrinking drops and lowers them.

Weights only steer towards deep states; coverage is counted elsewhere, and asserted.
"""

from hypothesis import strategies as st

from harness.schedule import (
    Admit,
    Decode,
    Evict,
    Extend,
    Finish,
    Idle,
    Repeat,
    Resume,
    Retract,
    Schedule,
    Step,
)
from reference.config import ModelConfig

LONGEST = 40
"""Most steps of a generated schedule after its opening admissions."""

SEEDS = 8
"""Schedule seeds drawn from: prompts, payloads, slot order and initial bytes follow from one."""


def schedules(config: ModelConfig, max_bs: int) -> st.SearchStrategy[Schedule]:
    """Return a strategy of schedules for `config` with batches of at most `max_bs` rows."""
    step, admit = _step(config, max_bs), _admit(config)
    opening = st.lists(admit, max_size=max_bs)
    short = st.lists(step, min_size=1, max_size=LONGEST)
    long = st.lists(step, min_size=LONGEST // 2, max_size=LONGEST)
    parts = st.tuples(opening, st.one_of(short, long, long))
    return st.builds(
        Schedule, parts.map(lambda part: (*part[0], *part[1])), st.integers(0, SEEDS - 1)
    )


def _admit(config: ModelConfig) -> st.SearchStrategy[Step]:
    near_window = st.integers(max(1, config.window - 3), config.window + 1)
    prompt = st.one_of(st.integers(1, 4), near_window, st.integers(1, 2 * config.window))
    return st.builds(Admit, prompt, _chunk(config))


def _chunk(config: ModelConfig) -> st.SearchStrategy[int]:
    whole = st.just(2 * config.window)
    return st.one_of(whole, whole, st.integers(1, config.window))


def _step(config: ModelConfig, max_bs: int) -> st.SearchStrategy[Step]:
    """Return a strategy of single steps, each kind as often as its weight; simplest first."""
    pick = st.integers(0, max_bs - 1)
    some = st.lists(pick, min_size=1, max_size=max_bs).map(tuple)
    first = st.integers(1, max_bs).map(lambda count: tuple(range(count)))
    weighted: list[tuple[int, st.SearchStrategy[Step]]] = [
        (5, _admit(config)),
        (4, st.builds(Decode, some)),
        (4, st.builds(Decode, first)),
        (2, st.builds(Repeat, st.integers(1, 3))),
        (1, st.builds(Finish, pick)),
        (2, st.builds(Idle)),
        (1, st.builds(Extend, pick, _chunk(config))),
        (1, st.builds(Evict, pick)),
        (2, st.builds(Retract, pick)),
        (3, st.builds(Resume, pick)),
    ]
    kinds = [kind for weight, kind in weighted for _ in range(weight)]
    return st.sampled_from(range(len(kinds))).flatmap(kinds.__getitem__)
