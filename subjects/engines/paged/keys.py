"""The keys that tokens of requests see, whose blocks a block table lists: on a host, in a graph."""

import torch
from torch import Tensor


def listed_slots(
    tokens: int,
    starts: Tensor,
    lengths: Tensor,
    table: Tensor,
    most: int,
    window: int | None,
    block: int,
) -> list[list[int]]:
    """Return the slots of the keys of each of T tokens: see `listed_keys`."""
    listed = listed_keys(tokens, starts, lengths, table, most, window, 1, block)
    slots, begin, end = (part.tolist() for part in listed[:3])
    return [slots[first:last] for first, last in zip(begin, end, strict=True)]


def listed_keys(
    tokens: int,
    starts: Tensor,
    lengths: Tensor,
    table: Tensor,
    most: int,
    window: int | None,
    drafts: int,
    block: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the keys of each of T tokens: slots, where a token's begin and end, which it sees.

    Request r runs tokens starts[r] .. starts[r+1]-1 and has lengths[r] keys then; its key i is
    in block table[r, i // block], of `block` slots. A token sees the last `window` keys up to
    itself, all if that is None; of `drafts` tokens that are verified at once, all are listed
    behind those. A token of no request has no key. It asks nothing of the device, so that a
    graph can hold it.
    """
    token = torch.arange(tokens, device=starts.device)
    turn = torch.arange(most, device=starts.device)
    request = (starts[1:] <= token[:, None]).sum(1).clamp(max=starts.shape[0] - 2)
    place = token - starts[request]
    query = starts[request + 1] - starts[request]
    total = lengths[request] - query + place + 1
    listed = total + (drafts - 1 - place if drafts > 1 else 0)
    first = torch.zeros_like(total) if window is None else (total - window).clamp(min=0)
    live = (token < starts[-1]) & (total > 0)
    key = first[:, None] + turn
    column = (key // block).clamp(max=table.shape[1] - 1)
    slots = table[request[:, None], column].to(torch.int64) * block + key % block
    begin = token * most
    count = torch.where(live, (listed - first).clamp(max=most), 0)
    return slots.flatten(), begin, begin + count, (key < total[:, None]).flatten()
