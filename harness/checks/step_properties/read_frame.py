"""read_frame: detects rows that read other slots than their own, even if they always do.

It compares the key lists of a forward with the required reads, both as sorted (row, slot) pairs. A
live row must read the slots of its request, and a padded row may only read the reserved slot 0.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.allocator import Owner
from paritybit.reference.batch import Mode
from paritybit.reference.config import DRAFT_FORWARDS, DRAFT_STEPS, Kind, Role
from paritybit.subjects.protocol import Keys
from torch import Tensor

SlotArray = NDArray[np.int64]


def judge(observation: Observation) -> Description | None:
    """Name the first wrong row, and the slots that it reads by mistake or does not read."""
    keys, layout = observation.keys, observation.layout
    if keys is None:
        return None
    most = layout.configs[Role.TARGET].max_context + DRAFT_STEPS
    for kind, of_kind in ((Kind.FULL, keys.full), (Kind.SWA, keys.swa)):
        none = layout.sizes.slots(kind)
        required = required_reads(observation, kind, none)
        forwards, live = len(required), len(required[0])
        of_forward = max(len(of_kind.begin) // forwards, live)
        rows, slots = listed_reads(of_kind, most, none)
        counted = (rows % of_forward < live) | (slots != 0)
        found = (rows * (none + 1) + slots)[counted]
        right = [
            (forward * of_forward + row) * (none + 1) + of_row
            for forward, of_rows in enumerate(required)
            for row, of_row in enumerate(of_rows)
        ]
        wanted = np.concatenate(right) if right else found[:0]
        if not np.array_equal(np.sort(found), np.sort(wanted)):
            return _describe(observation, kind, (found, wanted), live, of_forward)
    return None


def _describe(
    observation: Observation,
    kind: Kind,
    pairs: tuple[SlotArray, SlotArray],
    live: int,
    of_forward: int,
) -> Description:
    """Describe the first row whose reads differ. `pairs` are the found and the required ones."""
    width = observation.layout.sizes.slots(kind) + 1
    found, wanted = (Counter(numbers.tolist()) for numbers in pairs)
    row = min([*(found - wanted), *(wanted - found)]) // width
    more, lacking = (
        sorted(pair % width for pair in set(surplus) if pair // width == row)
        for surplus in (found - wanted, wanted - found)
    )
    is_live = row % of_forward < live
    words = [
        f"reads {_name_row(observation, kind, more)}" if more else "",
        f"does not read {_name_row(observation, kind, lacking)}" if lacking else "",
    ]
    where = {"kind": str(kind), "row": row, "live": is_live, "too_many": more, "too_few": lacking}
    message = " and ".join(word for word in words if word)
    return f"{'live' if is_live else 'padded'} row {row} {message}", where


def _name_row(observation: Observation, kind: Kind, slots: list[int]) -> str:
    """Name slots of a sub-pool, the first with its owner."""
    if slots[0] >= observation.layout.sizes.slots(kind):
        return "an invalid slot, or more keys than a request can have"
    owner = observation.graph.owner_of(kind, slots[0])
    others = f" and {len(slots) - 1} more" if len(slots) > 1 else ""
    return f"{kind} slot {slots[0]} of {owner}{others}"


def listed_reads(keys: Keys, most: int, none: int) -> tuple[SlotArray, SlotArray]:
    """Return the row and the slot of each read, both int64 [N].

    Slot `none` stands for a number that is no slot, and for all keys of a row beyond `most`.
    """
    begin, end, slots = (on_host(one) for one in (keys.begin, keys.end, keys.slots))
    counts = np.clip(end - begin, 0, most + 1)
    rows = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = begin[rows] + number
    inside = (place >= 0) & (place < len(slots)) & (number < most)
    found = slots[np.where(inside, place, 0)] if len(slots) else np.zeros_like(place)
    return rows, np.where(inside & (found >= 0) & (found < none), found, none)


def on_host(values: Tensor) -> SlotArray:
    """Return a tensor as an array on the host, int64."""
    return values.cpu().numpy().astype(np.int64)


def required_reads(observation: Observation, kind: Kind, none: int) -> list[list[SlotArray]]:
    """Return the slots of one sub-pool that each live row must read, per forward of a draft.

    `none` stands for a slot that the request no longer has.
    """
    graph, mode = observation.graph, observation.mode
    config = observation.layout.configs[Role.TARGET]
    window = config.window if kind is Kind.SWA else config.max_context
    owners = {owner.row: owner for owner in graph.owners}
    rows = [
        (slots_of(owners[span.row], kind, none), position)
        for span in graph.spans
        for position in span.positions(mode)
    ]
    return [
        [slots[max(0, position + 1 - window) : position + 1] for slots, position in of_forward]
        for of_forward in (
            [(slots, position + forward) for slots, position in rows]
            for forward in range(DRAFT_FORWARDS if mode is Mode.DRAFT else 1)
        )
    ]


def slots_of(owner: Owner, kind: Kind, none: int) -> SlotArray:
    """Return the slots of all columns of a request's pages, or `none` for freed pages."""
    pages: Sequence[int | None] = owner.full_pages if kind is Kind.FULL else owner.swa_pages
    numbers = np.array([-1 if page is None else page for page in pages], np.int64)
    slots = (numbers[:, None] * owner.page_size + np.arange(owner.page_size)).ravel()
    return np.where(slots < 0, none, slots)


READ_FRAME = Property(
    id="read_frame",
    statement=(
        "a live row reads only its own request's slots inside the window, and a padded row "
        "reads only slot 0"
    ),
    judge=judge,
)
