"""Which engines tests run: one for each distinct set of runners, which have them all between them.

Knows no runner by name, so that a new one needs no line here.
"""

from dataclasses import replace
from itertools import cycle

from paritybit.harness.lockstep.config import TrialConfig
from paritybit.subjects.runners import RUNNERS, engine_runners
from paritybit.subjects.toggles import LocationScheme

_BY_RUNNERS = {
    tuple(runner.name for runner in engine_runners(name)): name for name in reversed(RUNNERS)
}

ENGINES: tuple[str, ...] = tuple(sorted(_BY_RUNNERS.values(), key=[*RUNNERS].index))
"""Engines by their first runner: no two have the same runners."""

ENGINE_OF: dict[str, str] = {
    name: _BY_RUNNERS[tuple(runner.name for runner in engine_runners(name))] for name in RUNNERS
}
"""The engine that a runner is under test in."""

Shape = tuple[LocationScheme, str, str]
"""A location scheme, a preset and a dtype."""

PER_LAYER, PRESET, MEMO = LocationScheme

# Three rows of a Latin square: every scheme meets every preset, each preset every dtype. The
# scheme that has most static inputs is in float32: bfloat16 may round a small change away.
_SHAPES: tuple[tuple[Shape, ...], ...] = (
    (
        (PER_LAYER, "gemma3", "bfloat16"),
        (PRESET, "gpt_oss", "float32"),
        (MEMO, "mimo", "float32"),
    ),
    (
        (PER_LAYER, "gpt_oss", "float32"),
        (PRESET, "mimo", "float32"),
        (MEMO, "gemma3", "bfloat16"),
    ),
    (
        (PER_LAYER, "mimo", "bfloat16"),
        (PRESET, "gemma3", "float32"),
        (MEMO, "gpt_oss", "bfloat16"),
    ),
)

BUCKETS = (2, 4)
TOKEN_BUCKETS = (4, 24)

TRIALS: dict[tuple[str, LocationScheme], TrialConfig] = {
    (engine, scheme): TrialConfig(
        engine, preset, dtype, scheme=scheme, buckets=BUCKETS, token_buckets=TOKEN_BUCKETS
    )
    for engine, shapes in zip(ENGINES, cycle(_SHAPES), strict=False)
    for scheme, preset, dtype in shapes
}
"""A clean build of every engine under every location scheme, in two sizes."""


def trial_of(engine: str, scheme: LocationScheme, device: str) -> TrialConfig:
    """Return the clean trial of an engine under a scheme, on a device."""
    return replace(TRIALS[engine, scheme], device=device)
