"""Edges that random steps hardly ever reach.

They are the end of a context, the overflow of a counter of one byte, a prefill of as many requests
as a batch holds, and a token row that is given to another request before the forward in flight has
kept its token there.
"""

from collections.abc import Sequence

from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Evict,
    Extend,
    Finish,
    Prefill,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from paritybit.reference.config import SPECULATION, ModelConfig

BOTH = (0, 1)

ROUNDS, LIVES = 6, 15
"""Rounds of decodes of one set of requests, and how many sets there are, one after the other."""

HANDED_OVER = 3
"""How often a longer request comes while the decode of a shorter one that leaves is in flight."""

MANY = 256
"""Replays of one runner after which a counter of a byte begins again."""


def longest_context(config: ModelConfig, tokens: int) -> Schedule:
    """Return a schedule in which forwards of every kind reach as far as a request can grow.

    Each has a row of a short request beside it. The last prefill is of `tokens` tokens, which a
    graph can run; an engine leaves out what it has no runner for. At last a draft is of the row
    and the length of the draft before it, and reads other slots.
    """
    longest = config.max_context - 1
    # A draft that writes KV takes the most room beyond what is known, a verify the next most.
    drafted = config.max_context - SPECULATION.slots
    verified = config.max_context - SPECULATION.draft_tokens - 1
    drafts = Admit(2, 2), Decode((1,)), DraftExtend((1,)), Draft((1,))
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
        *(Finish(0), Finish(0), Admit(3, 3), *drafts, Finish(1)),
        *(*([Decode((0,))] * config.window), *drafts),
    )
    return Schedule(steps)


def many_replays(bucket: int) -> Schedule:
    """Return a schedule of more than MANY decodes of one bucket.

    Every third is full, and each of the others has a row less than the one before it: no power
    of two is a multiple of three, so that where a counter of bits begins again there is a row
    that was live in the replay before and is padding now.
    """
    rows = tuple(range(bucket))
    decodes = Decode(rows[:-1]), Decode(rows[:-2]), Decode(rows)
    life = (*([Admit(2, 2)] * bucket), *(decodes * ROUNDS), *([Finish(0)] * bucket))
    return Schedule(life * LIVES)


def handed_over(config: ModelConfig) -> Schedule:
    """Return a schedule in which a request leaves as it is decoded, and a longer one comes at once.

    Where steps overlap, the tokens of the longer one are written where the forward in flight
    has yet to keep the next token of the other.
    """
    longer, parked = 2 * config.window, Admit(2, 2)
    turn: tuple[Step, ...] = (
        *(Admit(3, 3), Decode(BOTH), Finish(1)),
        *(Admit(longer, longer), Decode(BOTH), Finish(1)),
    )
    return Schedule((parked, *(turn * HANDED_OVER)))


def prefilled_together(config: ModelConfig, requests: int, buckets: Sequence[int]) -> Schedule:
    """Return a schedule in which each bucket of tokens is filled by up to `requests` requests.

    Each is filled whole, and then all but one token. Then two requests are prefilled together
    beyond their windows, chunk by chunk; the first has the longer prompt. After each chunk both
    are evicted from. At last a request leaves, and another one of its length gets its row: first
    with slots of both sub-pools that are not those of the one before it, then with other SWA slots
    alone.
    """
    steps: list[Step] = []
    for bucket in buckets:
        for tokens in (bucket, bucket - 1):
            count = min(requests, tokens)
            prompts = tuple((tokens + place) // count for place in range(count))
            steps += [Prefill(prompts, tokens), *([Finish(0)] * count)]
    chunk = max(buckets) // len(BOTH)
    evicted = tuple(map(Evict, BOTH))
    steps += [Prefill((2 * config.window + 1, config.window + 2), chunk), *evicted]
    steps += [Prefill((), chunk), *evicted] * (2 * config.window // chunk)
    again = Prefill((chunk,), chunk), Finish(len(BOTH))
    steps += [*again, *([Decode(BOTH)] * config.window), *again, *evicted, *again]
    return Schedule(tuple(steps))
