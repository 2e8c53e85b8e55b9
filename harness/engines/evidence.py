"""What one observation shows that a fault class is told by, whichever engine it is of."""

from collections.abc import Callable, Mapping

from paritybit.harness.checks.of_steps.write_frame import writes_outside_frame
from paritybit.harness.engines.statics import before, tail
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind
from torch import Tensor

Seen = Callable[[Observation], bool]

Used = Callable[[Tensor], Tensor]
"""Says of each value that padded rows may hold whether it is in use: not reserved."""

REQUEST_ROWS = ("req_pool_indices",)
SWA_LOCATIONS = ("out_cache_loc_swa", "swa_out_cache_loc")
"""How the names of static inputs end that hold these."""

SLOTS = ("slot_mapping.full", "slot_mapping.swa")
"""The static inputs that say where tokens store their KV; a negative slot stores nowhere."""


def padded(observation: Observation) -> bool:
    """Whether a padded replay was observed."""
    return observation.replay is not None and observation.replay.padded


def inputs_called(observation: Observation, endings: tuple[str, ...]) -> list[str]:
    """Return the static inputs that the batch brings and whose names end so."""
    given = (observation.replay.given or {}) if observation.replay is not None else {}
    return [name for name in given if name.endswith(endings)]


def has_input(endings: tuple[str, ...]) -> Seen:
    """Return whether a runner has a static input whose name ends so."""
    return lambda observation: bool(inputs_called(observation, endings))


def tail_was_used(endings: tuple[str, ...], used: Used = Tensor.bool) -> Seen:
    """Return whether rows that are padded now held an earlier batch's values of a static input."""

    def seen(observation: Observation) -> bool:
        return padded(observation) and tails_hold(observation, endings, before(observation), used)

    return seen


def tail_is_used(
    observation: Observation, endings: tuple[str, ...], used: Used = Tensor.bool
) -> bool:
    """Whether padded rows of a static input hold anything but what is reserved."""
    return tails_hold(observation, endings, observation.static, used)


def tails_hold(
    observation: Observation, endings: tuple[str, ...], held: Mapping[str, Tensor], used: Used
) -> bool:
    """Whether padded rows of a static input hold what is in use, by what static inputs `held`."""
    return any(
        bool(used(tail(observation, found, held[found])).any())
        for found in inputs_called(observation, endings)
    )


def writes_foreign_slots(observation: Observation) -> bool:
    """Whether slots were written that are nobody's to write."""
    written = writes_outside_frame(observation, observation.graph)
    return any(bool(arena.any()) for _, _, arena in observation.layout.arenas_of(written))


def writes_foreign_swa_slots_alone(observation: Observation) -> bool:
    """Whether padded rows wrote SWA slots that are nobody's to write, by locations of their own.

    Rows that write foreign full slots too were sent there by the full locations.
    """
    if not padded(observation) or not tail_is_used(observation, SWA_LOCATIONS):
        return False
    written = writes_outside_frame(observation, observation.graph)
    kinds = {kind for _, kind, arena in observation.layout.arenas_of(written) if bool(arena.any())}
    return kinds == {Kind.SWA}


def hands_locations_over(observation: Observation) -> bool:
    """Whether it was seen in which dtype SWA write locations are handed over."""
    return observation.facts is not None and observation.facts.locations is not None


def hands_over_another_dtype(observation: Observation) -> bool:
    """Whether the SWA write locations are of another dtype than the pool's translation."""
    locations = observation.facts.locations if observation.facts is not None else None
    return locations is not None and locations.handed != locations.translated


def padded_rows_are_requests(observation: Observation) -> bool:
    """Whether padded rows name requests, and so were told to read what those hold.

    Rows that name the reserved request and yet read otherwise have another cause.
    """
    replay, fresh = observation.replay, observation.extra.get("hermetic_replay")
    if replay is None or not tail_is_used(observation, REQUEST_ROWS):
        return False
    reserved = {kind: [[0]] * len(rows) for kind, rows in replay.reads.items()}
    right = fresh.reads if fresh is not None else reserved
    return any(
        rows[replay.live_rows :] != right[kind][replay.live_rows :]
        for kind, rows in replay.reads.items()
    )


def is_slot(held: Tensor) -> Tensor:
    """Say of each value of a slot mapping whether it names a slot."""
    return held >= 0


def stores_by_stale_slots(observation: Observation) -> bool:
    """Whether padded tokens hold slots, and slots that are nobody's to write were written.

    A release may pad a prefill that it runs eagerly too, to the size of a graph.
    """
    eagerly = any(bool(is_slot(slots).any()) for slots in observation.padding.values())
    replayed = padded(observation) and tail_is_used(observation, SLOTS, is_slot)
    return (eagerly or replayed) and writes_foreign_slots(observation)


def in_pieces(observation: Observation) -> bool:
    """Whether a replay was to be of several graphs: of pieces, with attention between them."""
    facts = observation.facts
    return facts is not None and (facts.graphs_expected or 0) > 1


def replays_one_graph(observation: Observation) -> bool:
    """Whether it was of one instead, which attention is in."""
    facts = observation.facts
    return in_pieces(observation) and facts is not None and facts.graphs_replayed == 1


def catches_up(observation: Observation) -> bool:
    """Whether a drafter is to catch up by a graph that was captured for it."""
    return observation.mode is Mode.DRAFT_EXTEND and observation.expected_graph


def catches_up_padded(observation: Observation) -> bool:
    """Whether it does so by a padded replay."""
    return catches_up(observation) and padded(observation)


def catches_up_eagerly(observation: Observation) -> bool:
    """Whether it does so without a replay."""
    return catches_up(observation) and observation.replay is None
