"""Who holds which blocks of one pool that serves the full layers and those of windows alike.

A page of either kind is a block; block 0 is nobody's.
"""

from collections.abc import Mapping, Sequence

import torch
from paritybit.reference.allocator import Numbers, Owner, Ownership
from paritybit.reference.config import Kind
from paritybit.subjects.engines.paged.requests import PagedRequests, name_of
from torch import Tensor

NO_ROW = -1
"""The row of a request that the engine's table of requests has lost."""


def ownership_of(
    requests: PagedRequests,
    free: tuple[int, ...],
    rows: Mapping[str, int],
    all_rows: tuple[int, ...],
    free_rows: tuple[int, ...],
    tables: Sequence[Tensor],
) -> Ownership:
    """Return who holds what: of the engine's blocks, some `free`, and of its rows of requests.

    `rows` are those that requests have by name. Of each kind those blocks may be held that the
    other does not hold. `tables` [rows, blocks of a request] are the engine's blocks of each row,
    a table a kind.
    """
    blocks, size = requests.blocks, requests.pages.size
    holders = [
        Owner(
            serial=serial,
            row=rows.get(name_of(serial), NO_ROW),
            state_slot=0,
            length=tokens,
            page_size=size,
            full_pages=tuple(requests.blocks_of(serial, Kind.FULL)),
            swa_pages=tuple(block or None for block in requests.blocks_of(serial, Kind.SWA)),
        )
        for serial, tokens in requests.reached.items()
    ]
    full = {page for one in holders for page in one.full_pages}
    swa = {page for one in holders for page in one.swa_pages}
    mapping, table = _tables(holders, blocks, size, dict(zip(Kind, tables, strict=True)))
    return Ownership(
        holders=tuple(holders),
        all=Numbers(
            full_pages=tuple(block for block in range(1, blocks) if block not in swa),
            swa_pages=tuple(block for block in range(1, blocks) if block not in full),
            rows=all_rows,
            states=tuple(one.state_slot for one in holders),
        ),
        free_full=free,
        free_swa=free,
        free_rows=free_rows,
        free_states=(),
        mapping=mapping,
        req_to_token=table,
    )


def _tables(
    holders: Sequence[Owner], blocks: int, size: int, tables: dict[Kind, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return which slot of the window layers lies beside each full one, and the slots of each row.

    Both as the tables have them; what left a window is 0, as in a world's.
    """
    full, swa = tables[Kind.FULL], tables[Kind.SWA]
    mapping = torch.zeros(blocks * size + 1, dtype=torch.int64, device=full.device)
    mapping[-1] = -1
    for one in holders:
        kept = torch.tensor([page is not None for page in one.swa_pages], device=full.device)
        pages = full[one.row, : len(kept)].clamp(0, blocks - 1)
        beside = _slots(swa[one.row, : len(kept)], size)
        mapping[_slots(pages, size)] = torch.where(kept.repeat_interleave(size), beside, 0)
    return mapping, _slots(full, size).view(full.shape[0], -1)


def _slots(blocks: Tensor, size: int) -> Tensor:
    """Return the slots of blocks of so many, in order."""
    offsets = torch.arange(size, device=blocks.device)
    return (blocks.to(torch.int64)[..., None] * size + offsets).flatten()
