"""The edge of a context: what random steps hardly ever grow to, and every long request meets."""

from harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Extend,
    Finish,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from reference.config import SPECULATION, ModelConfig

BOTH = (0, 1)


def longest_context(config: ModelConfig, tokens: int) -> Schedule:
    """Return a schedule in which forwards of every kind reach as far as a request can grow.

    Each has a row of a short request beside it. The last prefill is of `tokens` tokens, which a
    graph can run; an engine leaves out what it has no runner for.
    """
    longest = config.max_context - 1
    # A draft that writes KV takes the most room beyond what is known, a verify the next most.
    drafted = config.max_context - SPECULATION.slots
    verified = config.max_context - SPECULATION.draft_tokens - 1
    steps: tuple[Step, ...] = (
        *(Admit(drafted - 2, config.window), Extend(0, longest), Admit(3, 3)),
        *([Decode((0,))] * 2),
        *(DraftExtend(BOTH), Draft(BOTH)),
        *([Decode(BOTH)] * (verified - drafted)),
        *(DraftExtend(BOTH), Verify(BOTH, 0)),
        *([Decode((0,)), Decode(BOTH)] * SPECULATION.draft_tokens),
        *(DraftExtend(BOTH), Draft(BOTH)),
        *(Retract(0), Resume(0), Finish(0), Finish(0)),
        *(Admit(3, 3), Admit(longest, longest - tokens), Extend(0, tokens)),
    )
    return Schedule(steps)
