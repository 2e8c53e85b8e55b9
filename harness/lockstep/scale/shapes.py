"""The pool sizes of each shape, what its trials use in turn, and trials of other sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.buckets import (
    SKIPPED_SLOTS,
    SMALLEST,
    SMALLEST_TOKENS,
    WIDE_CONTEXT,
)
from paritybit.reference.config import Shape
from paritybit.subjects.toggles import LocationScheme

Turns = tuple[tuple[int, str], ...]
"""Page sizes and dtypes that trials use in turn."""


@dataclass(frozen=True)
class Pools:
    """The slots of both sub-pools, and the page sizes and dtypes of their trials."""

    full_slots: int
    swa_slots: int
    turns: Turns


TINY = Pools(80, 72, ((4, "float32"), (1, "bfloat16"), (1, "float32"), (4, "bfloat16")))

MID = Pools(320, 288, ((16, "float32"), (1, "bfloat16"), (1, "float32"), (16, "bfloat16")))
"""Pools for as many windows and prompts as tiny pools hold, each four times as long."""

WIDE: Turns = ((256, "bfloat16"), (64, "bfloat16"))

REAL: Mapping[str, Pools] = {
    "gemma3": Pools(7 * 2**18, 2**16, WIDE),
    "gpt_oss": Pools(41 * 2**17, 2**16, WIDE),
    "mimo": Pools(13 * 2**18, 2**16, WIDE),
}
"""Pools of 31 GiB per world including the draft model's KV, by preset.

The keys of a full layer span 1.2 to 1.8 times 2^31 elements, so requests have slots on both sides
of the first offset that overflows a signed 32-bit integer. The SWA slots are enough for 16 requests
with three windows of gemma3 each.
"""

FEW_EXAMPLES: Mapping[Shape, int] = {Shape.MID: 8, Shape.REAL: 2}
"""The default number of schedules for each bug, and the maximum for a clean trial."""


def pools_of(shape: Shape, preset: str) -> Pools:
    """Return the pools of a preset for a shape."""
    return {Shape.TINY: TINY, Shape.MID: MID}.get(shape) or REAL[preset]


def trial_of(
    shape: Shape, preset: str, runner: str, device: str, scheme: LocationScheme, turn: int
) -> TrialConfig:
    """Return a trial over the pools of a shape. `turn` selects page size and dtype."""
    pools = pools_of(shape, preset)
    page_size, dtype = pools.turns[turn % len(pools.turns)]
    return TrialConfig(
        runner=runner,
        preset=preset,
        dtype=dtype,
        device=device,
        scheme=scheme,
        page_size=page_size,
        full_slots=pools.full_slots,
        swa_slots=pools.swa_slots,
        shape=shape,
    )


def with_small_pools(trial: TrialConfig) -> TrialConfig:
    """Return a trial of the same model over pools that can be copied.

    The pools hold three windows of each request, in whole pages, and skip no slot numbers. A trial
    whose pools can be copied is returned unchanged.
    """
    trial = replace(trial, skipped_slots=0)
    if not trial.large:
        return trial
    longest = 3 * trial.model.window + 64
    slots = -(-longest // trial.page_size) * trial.page_size * max(trial.buckets)
    return replace(trial, full_slots=slots, swa_slots=slots)


def smallest(trial: TrialConfig) -> TrialConfig:
    """Return the trial with the smallest captured sizes."""
    return replace(trial, buckets=SMALLEST, token_buckets=SMALLEST_TOKENS)


def wide(trial: TrialConfig) -> TrialConfig:
    """Return the trial with long contexts and, on a CPU, high slot numbers."""
    slots = WIDE_CONTEXT + trial.full_slots
    skipped = SKIPPED_SLOTS if trial.device == "cpu" else 0
    return replace(
        trial,
        full_slots=slots,
        swa_slots=slots,
        max_context=WIDE_CONTEXT,
        skipped_slots=skipped,
    )


def one_size(trial: TrialConfig) -> TrialConfig:
    """Return the trial with one captured size per runner.

    It is for campaigns with few schedules per trial, where most of the time goes to captures. Each
    bug shows with one size.
    """
    return replace(trial, buckets=(4,), token_buckets=(12,))
