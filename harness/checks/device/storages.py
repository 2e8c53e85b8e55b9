"""Questions about storages: whether they differ, and whether a step changed what it may not.

Which elements a step may change a kernel looks up by numbers.
"""

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
"""What the host counts out for a kernel that looks up all it needs."""


class Beside(StrEnum):
    """The parts of the state beside KV."""

    STATE = "a request's state"
    TREE = "the states of a tree's nodes"
    DRAFT = "a request's row of the draft table"


OWN: dict[Mode, Beside] = {
    Mode.EXTEND: Beside.STATE,
    Mode.DECODE: Beside.STATE,
    Mode.TARGET_VERIFY: Beside.TREE,
    Mode.DRAFT: Beside.DRAFT,
    Mode.FROZEN_DRAFT: Beside.DRAFT,
}
"""Which part beside KV a forward of each mode may change of its requests, if any."""

NONE = -1
"""No part."""


@lru_cache(maxsize=8)
def parts_of(layout: KVLayout) -> dict[tuple[Role, Kind] | Beside, int]:
    """Return the numbers of the parts of a storage."""
    arenas = [(role, kind) for role, kind, _ in layout.arenas_of(torch.empty(layout.elements))]
    return {part: number for number, part in enumerate([*arenas, *Beside])}


@lru_cache(maxsize=8)
def numbers_of(layout: KVLayout, device: torch.device) -> Tensor:
    """Return of each element of a storage its part, and its slot or place, int32 [elements].

    Nobody writes them.
    """
    # Imported late, as in `kernels`.
    shift, parts = kernels().PLACE_BITS, parts_of(layout)
    numbers = torch.zeros(layout.elements, dtype=torch.int32)
    for role, kind, arena in layout.arenas_of(numbers):
        slots = torch.arange(arena.shape[2], dtype=torch.int32).view(1, 1, -1, 1, 1)
        arena.copy_(slots + (parts[role, kind] << shift))
    for section, held in layout.sections_of(numbers).items():
        places = torch.arange(held.shape[0], dtype=torch.int32).view(-1, 1, 1)
        if section is Section.RECURRENT:
            held[:, :1] = places + (parts[Beside.STATE] << shift)
            held[:, 1:] = places + (parts[Beside.TREE] << shift)
        else:
            held.copy_(places + (parts[Beside.DRAFT] << shift))
    return numbers.to(device)


def own_of(world: Snapshot, mode: Mode, nothing: Tensor) -> tuple[Tensor, Tensor]:
    """Return the full slots that a forward of one world writes, and its places beside KV."""
    batch = world.batch
    if batch is None:
        return nothing, nothing
    places = batch.req_pool_indices
    if OWN.get(mode) is not Beside.DRAFT:
        places = batch.mamba_track_indices
    return nothing if mode.written is None else batch.out_cache_loc, places


def strayed(observation: Observation) -> Question:
    """Return whether either world wrote outside the step's frame: see `writes_outside_frame`."""
    layout, mode, compared = observation.layout, observation.mode, observation.compared
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
            numbers_of(layout, compared.device),
            compared,
            *given,
            layout.elements,
            observation.eager.mapping.shape[0],
            *written,
            parts[OWN[mode]] if mode in OWN else NONE,
            FULL_SLOTS=layout.sizes.slots(Kind.FULL),
            SWA_SLOTS=layout.sizes.slots(Kind.SWA),
            BLOCK=ELEMENTS,
        )

    return Question(compared.device, NOTHING, launch)


def storages_differ(observation: Observation) -> Unequal:
    """Return whether any element that is compared differs between the worlds after the step."""
    return Unequal([(observation.eager.after, observation.graph.after)], observation.compared)
