"""The keys of draft tokens, from what the engine hands to its extend kernel with a tree mask.

All is torch of static shapes, so that a graph can hold it: what the engine's static tensors
hold is read at each replay.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TreeBatch:
    """What the kernel is given of R requests with new tokens, on layers of one kind.

    Request r has the tokens qo_indptr[r] .. qo_indptr[r+1]-1 and the prefix
    kv_indices[kv_indptr[r]:kv_indptr[r+1]], of which `offsets[r]` tokens before are left out
    (None: none). `mask` (of any integer or bool dtype) is there where the new tokens are trees
    of k drafts each, and has its bits from mask_indptr[r] on: for each token, one for every
    token of the prefix and of what is left out, then one for every draft token. `window` counts
    the keys that a token sees, None where it sees all.
    """

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    mask: Tensor | None
    mask_indptr: Tensor | None
    offsets: Tensor | None
    drafts: int
    window: int | None


@dataclass(frozen=True)
class TreeKeys:
    """The keys of T draft tokens, as an op lists them.

    Row t lists slots[begin[t]:end[t]], of which it sees key i where mask[begin[t] + i] is set:
    the prefix within its window, all of which it sees, then all draft tokens of its request,
    which are in the slots from `base` on, one for each token of the forward.
    """

    begin: Tensor
    end: Tensor
    slots: Tensor
    mask: Tensor


def tree_keys(given: TreeBatch, tokens: int, most_past: int, base: int) -> TreeKeys:
    """Return the keys of `tokens` draft tokens, of whose prefix each sees `most_past` at most.

    A token's depth is how many drafts it sees besides itself. As in the kernel, bits of the
    prefix are not read: a draft token sees all of it, but for the window.
    """
    place = torch.arange(tokens, device=given.qo_indptr.device)
    starts, bounds = given.qo_indptr.to(torch.int64), given.kv_indptr.to(torch.int64)
    requests = starts.shape[0] - 1
    request = torch.searchsorted(starts[1:], place, right=True).clamp(max=requests - 1)
    prefix = bounds[request + 1] - bounds[request]
    seen = _drafts_seen(given, starts, request, prefix, place)
    past = prefix
    if given.window is not None:
        past = torch.minimum(prefix, (given.window - seen.sum(-1)).clamp(min=0))
    width = most_past + given.drafts
    turn = torch.arange(width, device=place.device)
    is_past = turn < past[:, None]
    old = ((bounds[request + 1] - past)[:, None] + turn).clamp(0, given.kv_indices.shape[0] - 1)
    draft = (turn - past[:, None]).clamp(0, given.drafts - 1)
    new = (starts[request][:, None] + draft).clamp(max=tokens - 1) + base
    slots = torch.where(is_past, given.kv_indices[old].to(torch.int64), new)
    begin = place * width
    return TreeKeys(
        begin=begin,
        end=begin + past + given.drafts,
        slots=slots.flatten(),
        mask=(is_past | seen.gather(1, draft)).flatten(),
    )


def _drafts_seen(
    given: TreeBatch, starts: Tensor, request: Tensor, prefix: Tensor, place: Tensor
) -> Tensor:
    """Return which draft tokens of its request each token sees, bool [T, k]."""
    assert given.mask is not None and given.mask_indptr is not None
    before = prefix
    if given.offsets is not None:
        before = prefix + given.offsets[request]
    row = (place - starts[request]) * (before + given.drafts)
    first = given.mask_indptr[request] + row + before
    turn = torch.arange(given.drafts, device=place.device)
    bit = (first[:, None] + turn).clamp(0, given.mask.shape[0] - 1)
    return given.mask[bit] != 0
