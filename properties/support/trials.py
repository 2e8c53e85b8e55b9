"""The trials of the suite: which engines, presets, location schemes, dtypes and page sizes.

A clean build is tried on few trials in which every two values of different axes meet, a
broken one on every shape, and the hunts of bugs each on another.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

from paritybit.harness.checks.expectations import affected_runners
from paritybit.harness.lockstep.config import DTYPES, TOPK, TrialConfig
from paritybit.reference.config import PRESETS, SPECULATION
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import ONE_PER_ENGINE, RUNNERS
from paritybit.subjects.toggles import LocationScheme

PAGE_SIZES = (1, 4)

ORDERS = 24
"""In how many orders few rows are looked for."""

Row = tuple[Any, ...]
"""A value of every axis, in the order of the axes."""

Pair = tuple[int, Any, int, Any]
"""Two values that a row has: the place of an axis and its value, twice."""


def pairs_of(row: Row) -> set[Pair]:
    """Return every two values that a row has."""
    return {(*one, *other) for one, other in combinations(enumerate(row), 2)}


def all_pairs(axes: Sequence[Sequence[Any]]) -> list[Row]:
    """Return rows in which every two values of different axes meet, few and always the same.

    The fewest that were found in some orders of all rows there can be.
    """
    candidates = list(product(*axes))
    orders = [random.Random(seed).sample(candidates, len(candidates)) for seed in range(ORDERS)]
    return min(map(greedy_pairs, orders), key=len)


def greedy_pairs(candidates: Sequence[Row]) -> list[Row]:
    """Return rows with all pairs: the next is the first of those with the most that are missing."""
    having = {row: pairs_of(row) for row in candidates}
    missing = set[Pair]().union(*having.values())
    rows = []
    while missing:
        rows.append(max(candidates, key=lambda row: len(missing & having[row])))
        missing -= having[rows[-1]]
    return rows


def axes_of(runner: str | None, preset: str | None) -> Mapping[str, Sequence[Any]]:
    """Return the axes of clean trials and their values, as far as the options leave them."""
    return {
        "runner": [runner] if runner else ONE_PER_ENGINE,
        "preset": [preset] if preset else list(PRESETS),
        "scheme": list(LocationScheme),
        "dtype": list(DTYPES),
        "page_size": PAGE_SIZES,
        "topk": TOPK,
    }


def clean_trials(
    device: str,
    runner: str | None,
    preset: str | None,
    bug: str | None,
) -> list[TrialConfig]:
    """Return the trials that a clean build must pass; with `bug`, the trials broken by it.

    A bug takes the runner asked for, or all that it affects, under its own location scheme.
    """
    if bug is None:
        axes = axes_of(runner, preset)
        rows = [dict(zip(axes, row, strict=True)) for row in all_pairs(list(axes.values()))]
        return [TrialConfig(device=device, **row) for row in rows]
    runners = [runner] if runner else affected_runners(BUGS[bug])
    presets = [preset] if preset else list(PRESETS)
    scheme = BUGS[bug].scheme
    return [
        TrialConfig(in_runner, of_preset, dtype, device, scheme, page_size, bugs=(bug,))
        for in_runner, of_preset, dtype, page_size in product(runners, presets, DTYPES, PAGE_SIZES)
    ]


def bug_trial(bug: str, runner: str, device: str, preset: str | None) -> TrialConfig:
    """Return a trial of a bug on a runner, each pair on another preset, page size and dtype.

    Two sizes are captured, which is enough to go from one to the other; the main job hunts
    with the sizes that a trial has by default.
    """
    place = every_pair().index((bug, runner))
    dtype, page_size = list(product(DTYPES, PAGE_SIZES))[place % 4]
    chosen = preset or list(PRESETS)[place % len(PRESETS)]
    trial = TrialConfig(
        runner, chosen, dtype, device, page_size=page_size, buckets=(2, 4), token_buckets=(4, 12)
    )
    return trial.with_bug(bug)


def every_pair() -> list[tuple[str, str]]:
    """Return every (bug, runner) that can be switched on."""
    return [
        (name, runner)
        for name, bug in BUGS.items()
        for runner in RUNNERS
        if not lacking(bug, runner)
    ]


def name(trial: TrialConfig) -> str:
    """Return a trial in a test id."""
    parts = [trial.preset, str(trial.scheme), trial.dtype, f"page{trial.page_size}"]
    parts += [] if trial.topk == SPECULATION.topk else [f"topk{trial.topk}"]
    return "-".join([trial.runner, *parts, *trial.bugs])
