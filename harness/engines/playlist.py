"""What an engine's trial plays: the legs of each runner, their schedules, and their bounds."""

from dataclasses import dataclass, replace

from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Finish,
    Schedule,
    Verify,
)

from paritybit.compat import StrEnum


class Kind(StrEnum):
    """What is done in a leg."""

    REPLAYED = "replayed"
    OWN_EAGER = "own eager mode"
    OWN_KERNELS = "own kernels"
    SOAKED = "soaked"
    BISECTED = "bisected"


EAGERLY_TOO = (Kind.REPLAYED, Kind.OWN_EAGER)
EVERY_WAY = (*EAGERLY_TOO, Kind.OWN_KERNELS)
"""The kinds of legs in which a runner may be tried, beside replays."""

PAGE_SIZES = {"gemma3": 4}
"""Slots of a page by model, where they are not 1: two kinds of allocation are tried."""


@dataclass(frozen=True)
class Runner:
    """How a runner is tried: in which ways, and on which models if none are asked for.

    `word` stands in the source of every engine that has it, in some case and with some space:
    see `mentions`. `captures` is whether a GPU can capture it.
    """

    word: str
    presets: tuple[str, ...] = ("gpt_oss",)
    kinds: tuple[Kind, ...] = (Kind.REPLAYED,)
    captures: bool = True


RUNNERS = {
    "decode": Runner("cuda graph", ("gpt_oss", "gemma3"), EVERY_WAY),
    "target_verify": Runner("target verify", ("gpt_oss", "gemma3")),
    "cpu_graph": Runner("CPU graph", ("mimo",), captures=False),
    "eagle_draft": Runner("EAGLE draft"),
    "eagle_draft_extend": Runner("EAGLE draft extend"),
    "frozen_kv_mtp": Runner("frozen KV"),
    "piecewise": Runner("piecewise", ("mimo",)),
    "breakable": Runner("breakable", ("mimo",)),
}
"""Every runner of an engine, in the order in which they are tried."""


def trial_of(runner: str, preset: str, kind: Kind, device: str) -> TrialConfig:
    """Return the settings of a leg."""
    trial = TrialConfig(runner=runner, preset=preset, device=device)
    if kind is Kind.OWN_KERNELS:  # Slow, so with little room: slots are reused at once.
        return replace(trial, full_slots=40, swa_slots=36, rows=8, buckets=(2, 4))
    return replace(trial, page_size=PAGE_SIZES.get(preset, 1))


SHRINKING_FORWARDS = 120
"""Forwards at most that are spent on shrinking one failing schedule."""

TRAFFIC_OF_A_PIECE = 125
"""Schedules of traffic at most in one piece of a soak: all that the trace has."""

SHRINKING = Schedule(
    (
        *(Admit(prompt, 24) for prompt in (3, 5, 7, 9)),
        Decode((0, 1, 2, 3)),
        Decode((0, 1, 2, 3)),
        Decode((0, 1, 2)),
        Finish(3),
        Admit(4, 24),
        Decode((0, 1, 2)),
        Decode((3, 2, 1)),
        Decode((0,)),
    )
)
"""A batch fills its bucket and shrinks while the request that left it keeps its KV.

It then shrinks into a smaller bucket, for runners whose full buckets leave no history.
"""

VERIFYING = Schedule(
    (
        *(Admit(prompt, 24) for prompt in (3, 5, 7, 9)),
        Verify((0, 1, 2, 3), 2),
        Verify((0, 1, 2, 3), 0),
        Verify((0, 1, 2), 3),
        Finish(3),
        Admit(4, 24),
        Verify((0, 1, 2), 1),
        Decode((0, 1, 2)),
        Evict(0),
        Verify((3, 2, 1), 0),
        Verify((0,), 3),
    )
)
"""As SHRINKING, for a runner of verifies: of each tree some drafts are rejected.

Requests decode in between, and one loses what left its windows.
"""

DRAFTING = Schedule(
    (
        *(Admit(prompt, 24) for prompt in (3, 4, 2, 9)),
        DraftExtend((0, 1, 2, 3)),
        DraftExtend((0, 1, 2)),
        Draft((0, 1, 2, 3)),
        Decode((0, 1, 2, 3)),
        DraftExtend((0, 1, 2, 3)),
        Draft((0, 1, 2, 3)),
        Decode((0, 1, 2)),
        Finish(3),
        Admit(4, 24),
        DraftExtend((0, 1, 2)),
        Draft((0, 1, 2)),
        Draft((0, 1, 2)),
    )
)
"""The same of drafts: of what catches up with a target that decodes, and of what is proposed."""

CATCHING_UP = Schedule(
    (
        *DRAFTING.steps,
        *(Admit(prompt, 24) for prompt in (2, 3, 4)),
        DraftExtend((0, 1, 2, 3)),
        DraftExtend((0, 1, 2, 3)),
        Decode((0, 1, 2, 3)),
        Decode((4, 5, 6)),
        DraftExtend((0, 1, 2, 3)),
        DraftExtend((0, 1, 2)),
    )
)
"""What catches up alone follows too: three requests right after four, in their bucket."""

PROMPTS = Schedule(tuple(Admit(prompt, prompt) for prompt in (11, 3, 12, 7)))
"""Prompts prefilled in turn: each second one is padded after a longer one."""

REUSING = Schedule(
    (
        *(Admit(prompt, 24) for prompt in (3, 5, 7, 12)),
        Decode((0, 1, 2, 3)),
        Decode((0, 1, 2, 3)),
        Decode((0, 1, 2)),
        Decode((0, 1, 2, 3)),
        Finish(3),
        Finish(2),
        Admit(6, 24),
        Decode((0, 1, 2)),
        Decode((0, 1, 2)),
        Decode((0, 1, 2)),
    )
)
"""Four decode, then three in their bucket of four, and the fourth again, which kept its KV.

Two finish, their slots are given out again, and again three decode in a bucket of four.
"""

FIRST = {
    "decode": SHRINKING,
    "target_verify": VERIFYING,
    "cpu_graph": SHRINKING,
    "eagle_draft": DRAFTING,
    "eagle_draft_extend": CATCHING_UP,
    "frozen_kv_mtp": DRAFTING,
    "piecewise": PROMPTS,
    "breakable": PROMPTS,
}
"""What is played on a runner first, with every property on."""

EXAMPLES = 4
"""Schedules of traffic and drawn ones, together, that each leg plays beside its first."""

OWN_BOUND = {"cpu": 2e-4, "cuda": 2e-2}
"""Largest |engine - dense| / (1 + |dense|) of a logit, float32. On CUDA the engine's kernels
multiply in tf32, of 11 significant bits, and the error grows from layer to layer."""
