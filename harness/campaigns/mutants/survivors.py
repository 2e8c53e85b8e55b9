"""The mutants that no property can detect, with reasons. The hunt checks each reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paritybit.harness.checks.play import Lockstep
from paritybit.subjects.mutants.inputs import MistakenInputs
from paritybit.subjects.mutants.mutant import Mistake, Mutant

from paritybit.compat import StrEnum


class Reason(StrEnum):
    """Why a mistake has no effect."""

    EQUIVALENT = "equivalent"
    INERT = "inert"


def mistaken(lockstep: Lockstep) -> MistakenInputs:
    """Return the mutant's static inputs, which count the effects of the mistake."""
    inputs = lockstep.pair.subject.engine.under_test.inputs
    assert isinstance(inputs, MistakenInputs)
    return inputs


def is_equivalent(lockstep: Lockstep) -> bool:
    """Whether the buffer was populated, and was right each time."""
    inputs = mistaken(lockstep)
    return inputs.populated > 0 and inputs.differed == 0


def is_inert(lockstep: Lockstep) -> bool:
    """Whether the buffer was wrong before replays, although no observation differs."""
    return mistaken(lockstep).differed > 0


CHECKS: Mapping[Reason, Callable[[Lockstep], bool]] = {
    Reason.EQUIVALENT: is_equivalent,
    Reason.INERT: is_inert,
}
"""Checks of a reason, after all schedules were played on a mutant without a violation."""


@dataclass(frozen=True)
class Survivor:
    """Why a mutant survives: the kind of reason, and a description."""

    reason: Reason
    because: str


NEVER_FILLED_UP = Survivor(
    Reason.EQUIVALENT,
    "full batches are used in place, so no live value is ever copied into the last element",
)
NEVER_COPIED = Survivor(
    Reason.EQUIVALENT, "the runner never fills this input, so no copy can be wrong"
)

OF_PADDED_ROWS = Survivor(
    Reason.INERT,
    "only padded rows read it; with any valid value there, all live rows and KV stay correct",
)

SURVIVORS: Mapping[tuple[str, str, Mistake], Survivor] = {
    **{
        ("cpu_graph", name, Mistake.LAST_NOT_RESET): NEVER_FILLED_UP
        for name in ("seq_lens", "out_cache_loc", "req_pool_indices")
    },
    **{
        ("eagle_draft", name, mistake): NEVER_COPIED
        for name in ("input_ids", "mrope_positions", "extend_seq_lens")
        for mistake in (Mistake.COPIED_SHORT, Mistake.LATE, Mistake.FROZEN)
    },
    **{
        (runner, "encoder_lens", Mistake.WRONG_FILL): OF_PADDED_ROWS
        for runner in ("decode", "target_verify")
    },
}
"""The survivors by runner, buffer and mistake, for all location schemes."""


def survivor(mutant: Mutant) -> Survivor | None:
    """Return why a mutant survives, or None if it must be detected."""
    return SURVIVORS.get((mutant.runner, mutant.buffer, mutant.mistake))
