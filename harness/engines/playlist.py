"""What an engine's trial plays: the trials of its legs, their schedules, and their bounds."""

from harness.lockstep.config import TrialConfig
from harness.schedules.schedule import Admit, Decode, Finish, Schedule

TRIALS = (
    TrialConfig(runner="decode", preset="gpt_oss", page_size=1),
    TrialConfig(runner="decode", preset="gemma3", page_size=4),
    TrialConfig(runner="cpu_graph", preset="mimo", page_size=1),
)
"""The trials of the runners of decodes: model and page size."""

EXAMPLES = {"traffic": 2, "generated": 2}
"""Schedules of each source in each trial."""

SHRINKING_FORWARDS = 120
"""Forwards at most that are spent on shrinking one failing schedule."""

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

PREFILL = TrialConfig(preset="mimo")
"""The trial of the prefill and speculative runners, whichever it is."""

PROMPTS = Schedule(tuple(Admit(prompt, prompt) for prompt in (11, 3, 12, 7)))
"""Prompts prefilled in turn: each second one is padded after a longer one."""

KERNELS = TrialConfig(preset="gpt_oss", full_slots=40, swa_slots=36, rows=8, buckets=(2, 4))
"""The trial of the engine's own kernels: little room, so that slots are reused."""

REUSING = Schedule(
    (
        *(Admit(prompt, 24) for prompt in (3, 5, 7, 12)),
        Decode((0, 1, 2, 3)),
        Decode((0, 1, 2, 3)),
        Finish(3),
        Finish(2),
        Admit(6, 24),
        Decode((0, 1, 2)),
        Decode((0, 1, 2)),
        Decode((0, 1, 2)),
    )
)
"""Four decode, two finish, their slots are given out again, three decode in a bucket of four."""

OWN_BOUND = {"cpu": 2e-4, "cuda": 2e-2}
"""Largest |engine - dense| / (1 + |dense|) of a logit, float32. On CUDA the engine's kernels
multiply in tf32, of 11 significant bits, and the error grows from layer to layer."""
