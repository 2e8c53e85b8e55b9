"""Questions about storages: whether they differ, and whether a step wrote outside its frame."""

from functools import lru_cache

import numpy as np
import torch
from paritybit.harness.checks.device.launches import ELEMENTS, Question, kernels
from paritybit.harness.checks.device.unequal import Unequal
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.observation import Observation, Snapshot
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind, Role
from paritybit.reference.pool import KVLayout
from paritybit.reference.state_pool import Section
from torch import Tensor

from paritybit.compat import StrEnum

NOTHING = np.zeros(0, dtype=np.int32)
"""The numbers of a question whose kernel needs none from the host."""


class OtherPart(StrEnum):
    """The parts of a storage other than KV."""

    STATE = "a request's state"
    TREE = "the states of a tree's nodes"
    DRAFT = "a request's row of the draft table"


OWN: dict[Mode, OtherPart] = {
    Mode.EXTEND: OtherPart.STATE,
    Mode.DECODE: OtherPart.STATE,
    Mode.TARGET_VERIFY: OtherPart.TREE,
    Mode.DRAFT: OtherPart.DRAFT,
    Mode.FROZEN_DRAFT: OtherPart.DRAFT,
}
"""The part other than KV that a forward of each mode may change for its requests, if any."""

NONE = -1
"""No part."""


@lru_cache(maxsize=8)
def parts_of(layout: KVLayout) -> dict[tuple[Role, Kind] | OtherPart, int]:
    """Return the number of each part of a storage."""
    arenas = [(role, kind) for role, kind, _ in layout.arenas_of(torch.empty(layout.elements))]
    return {part: number for number, part in enumerate([*arenas, *OtherPart])}


@lru_cache(maxsize=8)
def numbers_of(layout: KVLayout, device: torch.device) -> Tensor:
    """Return the part and the slot or place of each element, int32 [elements]. It is cached."""
    # Imported late, as in `kernels`.
    shift, parts = kernels().PLACE_BITS, parts_of(layout)
    numbers = torch.zeros(layout.elements, dtype=torch.int32)
    for role, kind, arena in layout.arenas_of(numbers):
        slots = torch.arange(arena.shape[2], dtype=torch.int32).view(1, 1, -1, 1, 1)
        arena.copy_(slots + (parts[role, kind] << shift))
    for section, held in layout.sections_of(numbers).items():
        places = torch.arange(held.shape[0], dtype=torch.int32).view(-1, 1, 1)
        if section is Section.RECURRENT:
            held[:, :1] = places + (parts[OtherPart.STATE] << shift)
            held[:, 1:] = places + (parts[OtherPart.TREE] << shift)
        else:
            held.copy_(places + (parts[OtherPart.DRAFT] << shift))
    return numbers.to(device)


def own_of(world: Snapshot, mode: Mode, nothing: Tensor) -> tuple[Tensor, Tensor]:
    """Return the full slots that a forward of one world writes, and its places of other state."""
    batch = world.batch
    if batch is None:
        return nothing, nothing
    places = batch.req_pool_indices
    if OWN.get(mode) is not OtherPart.DRAFT:
        places = batch.mamba_track_indices
    return nothing if mode.written is None else batch.out_cache_loc, places


def strayed(observation: Observation, judged: Tensor) -> Question:
    """Return whether either world wrote outside the step's frame: see `writes_outside_frame`.

    `judged` is the mask of elements that count, in the storage's layout.
    """
    layout, mode = observation.layout, observation.mode
    parts = parts_of(layout)
    written = [NONE if mode.written is None else parts[mode.written, kind] for kind in Kind]

    def launch(asked: Tensor, first: int, answer: int) -> None:
        given = list[Tensor | int]()
        for world in (observation.eager, observation.graph):
            locations, places = own_of(world, mode, asked[:0])
            given += bits(world.before), bits(world.after), world.mapping
            given += locations, locations.shape[0], places, places.shape[0]
        kernels().strayed_kernel.launch(
            (-(-layout.elements // ELEMENTS), 2, 1),
            asked,
            answer,
            numbers_of(layout, judged.device),
            judged,
            *given,
            layout.elements,
            observation.eager.mapping.shape[0],
            *written,
            parts[OWN[mode]] if mode in OWN else NONE,
            FULL_SLOTS=layout.sizes.slots(Kind.FULL),
            SWA_SLOTS=layout.sizes.slots(Kind.SWA),
            BLOCK=ELEMENTS,
        )

    return Question(judged.device, NOTHING, launch)


def storages_differ(observation: Observation) -> Unequal:
    """Return whether any compared element differs between the worlds after the step."""
    return Unequal([(observation.eager.after, observation.graph.after)], observation.compared)
