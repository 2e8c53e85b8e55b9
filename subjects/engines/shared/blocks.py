"""Who holds which blocks of one pool that serves the full layers and those of windows alike.

Knows no engine. A page of either kind is a block; block 0 is nobody's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.allocator import Numbers, Owner, Ownership
from reference.config import Kind


def ownership_of(
    holders: Sequence[Owner],
    blocks: int,
    size: int,
    free: tuple[int, ...],
    rows: tuple[int, ...],
    free_rows: tuple[int, ...],
    tables: dict[Kind, Tensor],
) -> Ownership:
    """Return who holds what of a pool of so many blocks of `size` slots, of `rows`, and of `free`.

    Of each kind those blocks may be held that the other does not hold. `tables` [rows, blocks of
    a request] are the engine's blocks of each row.
    """
    full = {page for one in holders for page in one.full_pages}
    swa = {page for one in holders for page in one.swa_pages}
    mapping, table = _tables(holders, blocks, size, tables)
    return Ownership(
        holders=tuple(holders),
        all=Numbers(
            full_pages=tuple(block for block in range(1, blocks) if block not in swa),
            swa_pages=tuple(block for block in range(1, blocks) if block not in full),
            rows=rows,
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
