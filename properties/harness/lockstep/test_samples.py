"""What is compared with the oracle: all logits that are a request's own, at every length."""

from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Draft,
    DraftExtend,
    Extend,
    Prefill,
    Resume,
    Retract,
    Schedule,
    Verify,
)

SCHEDULE = Schedule(
    (
        Admit(6, 2),
        Admit(4, 99),
        Extend(0, 99),
        Decode((0, 1)),
        DraftExtend((0,)),
        Verify((0, 1), 2),
        DraftExtend((0, 1)),
        Draft((0, 1)),
        Verify((0, 1), 3),
        Retract(0),
        Decode((0,)),
        Resume(0),
        Decode((0, 1)),
        DraftExtend((0, 1)),
        Prefill((7, 3), 4),
        Prefill((2,), 99),
    ),
    seed=5,
)
"""Requests that pass a window of 8, or are prefilled together, in forwards of every kind."""

TRIAL = TrialConfig("target_verify", preset="gpt_oss", buckets=(4,), token_buckets=(12,))


def test_every_length_that_has_logits_is_sampled_in_every_forward() -> None:
    """A chunk's end, a decoded token, each token of an accepted path, what a draft caught up to."""
    lockstep = Lockstep(TRIAL, (), alone=True)
    pair, lengths = lockstep.pair, dict[int, int]()
    pair.reset(SCHEDULE.seed)
    modes = set()
    for place, step in enumerate(SCHEDULE.steps):
        observation = pair.step(step, place, sampling=True)
        if observation is None:
            continue
        wanted = set()
        for span in observation.eager.spans:
            request = pair.eager.request_of(span.row)
            if isinstance(step, DraftExtend):
                wanted.add((request.serial, True, request.drafted))
            elif isinstance(step, Verify):
                reached = range(lengths[request.serial] + 1, request.length + 1)
                wanted |= {(request.serial, False, length) for length in reached}
                assert len(reached) > 1
            elif not isinstance(step, Draft):
                wanted.add((request.serial, False, request.length))
            lengths[request.serial] = request.length
        found = [(one.serial, one.of_draft, len(one.tokens)) for one in observation.samples]
        assert len(found) == len(set(found))
        assert set(found) == wanted
        assert {one.place for one in observation.samples} <= {place}
        modes.add(observation.mode)
    assert modes == TRIAL.modes
