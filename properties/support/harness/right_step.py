"""What a right step read, was given and left, made by hand for an observation.

From the reference's own lists of what a token sees, and from what the tests know of a runner.
"""

from collections.abc import Mapping, Sequence

import torch
from paritybit.harness.checks.static_inputs import (
    FILLS,
    TOKEN_COUNTS,
    extents_of,
    live_part,
)
from paritybit.harness.lockstep.observation import Observation, StepEnd
from paritybit.reference.allocator import Numbers, Owner, Ownership
from paritybit.reference.batch import Mode, RequestSpan
from paritybit.reference.config import DRAFT_FORWARDS, Kind, ModelConfig
from paritybit.reference.pool import PoolSizes, Tables
from paritybit.subjects.contracts import Axis
from paritybit.subjects.protocol import KeyLists, Keys
from paritybit.subjects.runners import RUNNERS
from torch import Tensor

RUNNER: Mapping[Mode, str] = {
    Mode.EXTEND: "piecewise",
    Mode.DECODE: "decode",
    Mode.TARGET_VERIFY: "target_verify",
    Mode.DRAFT: "eagle_draft",
    Mode.FROZEN_DRAFT: "frozen_kv_mtp",
    Mode.DRAFT_EXTEND: "eagle_draft_extend",
}
"""The runner that replays each mode."""


def holders(owners: Sequence[Owner], spans: Sequence[RequestSpan]) -> tuple[Owner, ...]:
    """Return the owners with the slots that a forward may write as pages of one slot."""
    found = []
    by_row = {span.row: span for span in spans}
    for owner in owners:
        span = by_row.get(owner.row)
        full, swa = (span.full_slots, span.swa_slots) if span is not None else ((), ())
        pages = (*owner.full_pages, *full), (*owner.swa_pages, *swa)
        found.append(owner._replace(full_pages=pages[0], swa_pages=pages[1]))
    return tuple(found)


def slot_of(owner: Owner, kind: Kind, column: int) -> int:
    """Return the slot of one token. 0 if its page left the window."""
    pages = owner.full_pages if kind is Kind.FULL else owner.swa_pages
    page = pages[column // owner.page_size]
    return 0 if page is None else page * owner.page_size + column % owner.page_size


def right_keys(
    mode: Mode,
    spans: Sequence[RequestSpan],
    owners: Sequence[Owner],
    config: ModelConfig,
    *,
    idle: bool,
) -> KeyLists:
    """Return the lists of a right forward: its live rows, then a padded one, per forward."""
    found: dict[Kind, Keys] = {}
    for kind, window in ((Kind.FULL, config.max_context), (Kind.SWA, config.window)):
        rows: list[list[int]] = []
        for ahead in range(DRAFT_FORWARDS if mode is Mode.DRAFT else 1):
            for span in () if idle else spans:
                owner = next(one for one in owners if one.row == span.row)
                for last in (position + ahead for position in span.positions(mode)):
                    seen = range(max(0, last + 1 - window), last + 1)
                    rows.append([slot_of(owner, kind, column) for column in seen])
            rows.append([0])  # A padded row.
        counts = torch.tensor([len(row) for row in rows])
        slots = torch.tensor([slot for row in rows for slot in row])
        found[kind] = Keys(counts.cumsum(0) - counts, counts.cumsum(0), slots)
    return KeyLists(found[Kind.FULL], found[Kind.SWA])


STALE = 3
"""What an earlier batch left in a static input: no fill value, and valid everywhere."""


def right_static(found: Observation, config: ModelConfig) -> dict[str, Tensor]:
    """Return the static inputs of a runner after a right replay, larger than the bucket."""
    replay, batch = found.replay, found.eager.batch
    assert replay is not None
    extents = extents_of(found.mode, replay.bucket)
    counts = 0 if batch is None else batch.live_tokens, extents[Axis.TOKEN]
    static = {}
    for row in RUNNERS[replay.runner].rows:
        longer = {axis: extent + 2 for axis, extent in extents.items()}
        static[row.name] = buffer = torch.full(
            row.shape(longer, config.hidden), STALE, dtype=row.dtype or torch.float32
        )
        fill = FILLS[replay.runner].get(row.name)
        if fill is not None:
            buffer[: extents[row.axis]] = fill
        if row.name in TOKEN_COUNTS:
            buffer[:] = counts[TOKEN_COUNTS.index(row.name)]
        elif batch is not None:
            values = live_part(found, batch, row)
            buffer[: len(values)].copy_(values)
    return static


def right_end(owners: Sequence[Owner], sizes: PoolSizes, config: ModelConfig) -> StepEnd:
    """Return what a right step left where these requests hold what they hold: pages of one slot."""

    def free(held: Sequence[int | None], count: int) -> tuple[int, ...]:
        return tuple(number for number in range(1, count + 1) if number not in held)

    rows = range(2 * sizes.rows)
    sides = []
    for _ in range(2):
        tables = Tables(sizes, config.max_context, torch.device("cpu"))
        for owner in owners:
            tables.req_to_token[owner.row, : owner.length] = torch.tensor(owner.full_pages)
            swa = [0 if page is None else page for page in owner.swa_pages]
            tables.full_to_swa_index_mapping[list(owner.full_pages)] = torch.tensor(swa)
        sides.append(
            Ownership(
                holders=tuple(owners),
                all=Numbers.of(sizes),
                free_full=free([p for o in owners for p in o.full_pages], sizes.full_slots),
                free_swa=free([p for o in owners for p in o.swa_pages], sizes.swa_slots),
                free_rows=free([o.row for o in owners], sizes.rows),
                free_states=free([o.state_slot for o in owners], sizes.rows),
                mapping=tables.full_to_swa_index_mapping,
                req_to_token=tables.req_to_token,
                tokens=torch.zeros((len(rows), config.max_context), dtype=torch.int64),
                free_token_rows=tuple(rows[len(owners) :]),
            )
        )
    return StepEnd(3, sizes, *sides)
