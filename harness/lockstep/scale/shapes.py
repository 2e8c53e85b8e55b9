"""How large the pools of a shape are, and which page sizes and dtypes its trials take in turn."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paritybit.harness.lockstep.config import TrialConfig
from paritybit.reference.config import Shape
from paritybit.subjects.toggles import LocationScheme

Turns = tuple[tuple[int, str], ...]
"""Page sizes and dtypes that trials take in turn."""


@dataclass(frozen=True)
class Pools:
    """The slots of both sub-pools, and what trials over them take in turn."""

    full_slots: int
    swa_slots: int
    turns: Turns


TINY = Pools(80, 72, ((4, "float32"), (1, "bfloat16"), (1, "float32"), (4, "bfloat16")))

MID = Pools(320, 288, ((16, "float32"), (1, "bfloat16"), (1, "float32"), (16, "bfloat16")))
"""As many windows and prompts of them as tiny pools hold, each four times as long."""

WIDE: Turns = ((256, "bfloat16"), (64, "bfloat16"))

REAL: Mapping[str, Pools] = {
    "gemma3": Pools(7 * 2**18, 2**16, WIDE),
    "gpt_oss": Pools(41 * 2**17, 2**16, WIDE),
    "mimo": Pools(13 * 2**18, 2**16, WIDE),
}
"""Pools of 31 GiB a world, by preset, its draft model's KV included.

The last slot of a full layer's keys is some 1.2 to 1.8 times 2^31 elements from its first, in
each preset, so that requests have slots on both sides of the first offset that a signed number of
32 bits cannot hold. The window's slots are for 16 requests of three of gemma3's windows each.
"""

FEW_EXAMPLES: Mapping[Shape, int] = {Shape.MID: 8, Shape.REAL: 2}
"""Schedules for each bug where nobody says how many, and the most of a clean trial."""


def pools_of(shape: Shape, preset: str) -> Pools:
    """Return the pools of a preset in a shape."""
    return {Shape.TINY: TINY, Shape.MID: MID}.get(shape) or REAL[preset]


def trial_of(
    shape: Shape, preset: str, runner: str, device: str, scheme: LocationScheme, turn: int
) -> TrialConfig:
    """Return a trial over the pools of a shape; page sizes and dtypes take turns."""
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
    """Return a trial of the same model over pools that can be copied, if its own cannot.

    They hold three windows of each request, as its schedules ask for, in whole pages. Slot numbers
    that are skipped are not any longer.
    """
    trial = replace(trial, skipped_slots=0)
    if not trial.large:
        return trial
    longest = 3 * trial.model.window + 64
    slots = -(-longest // trial.page_size) * trial.page_size * max(trial.buckets)
    return replace(trial, full_slots=slots, swa_slots=slots)
