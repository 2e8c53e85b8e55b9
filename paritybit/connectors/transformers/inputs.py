"""The inputs of a forward pass: index lists, masks, and the static inputs of graphs."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.transformers.batch import Batch, Lists
from paritybit.connectors.transformers.cache import Part
from paritybit.connectors.transformers.streams import inputs_of
from paritybit.watch.facts import IndexList, StaticInput

LARGEST_MASK = 2**24
"""The most entries of a mask that is judged. To judge a mask, its expected value is built."""


def lists_of(batch: Batch) -> Iterator[IndexList]:
    """Yield the index lists that attention reads. Entries after those of the rows are padding."""
    for name, lists in batch.lists.items():
        if not lists.read.numel():
            continue
        part, begins = batch.parts[name], [0, *lists.ends[:-1]]
        # Layers with a window get the K and V of new tokens directly.
        new = [one.computed if part.window is not None else 0 for one in batch.requests]
        counts = [e - b - n for b, e, n in zip(begins, lists.ends, new, strict=True)]
        entries = part.slots(lists.read).cpu()
        yield IndexList(
            f"read_index[{name}]",
            name,
            entries,
            torch.tensor([*begins, lists.ends[-1]]),
            torch.tensor([*counts, len(entries) - lists.ends[-1]]),
            computed=0 if part.window is not None else None,
            exact=False,
        )


def laws_of(batch: Batch) -> Iterator[StaticInput]:
    """Yield the arguments of the model whose values the batch implies, including padding."""
    ends = list(accumulate(one.computed for one in batch.requests))
    yield expected("cu_seq_lens_q", batch.given["cu_seq_lens_q"], [0, *ends])
    last = [end - 1 for end, one in zip(ends, batch.requests, strict=True) if one.predicted]
    yield expected("logits_indices", batch.given["logits_indices"], last)
    yield from padding_of(batch)
    for name, lists in batch.lists.items():
        part = batch.parts[name]
        if part.window is not None and lists.read.numel():
            yield from new_tokens(batch, part, lists)
        mask = masks_of(batch).get(name)
        if mask is not None and mask.numel() <= LARGEST_MASK:
            yield mask_of(batch, part, mask[0, 0])


def padding_of(batch: Batch) -> Iterator[StaticInput]:
    """Yield what follows the live part of each argument, with the value that padding must have."""
    given, rows = batch.given, len(batch.requests)
    predicted = sum(one.predicted for one in batch.requests)
    tails: list[tuple[str, Tensor, int]] = [
        ("input_ids", given["input_ids"][0, batch.size :], 0),
        ("position_ids", given["position_ids"][0, batch.size :], 0),
        ("cu_seq_lens_q", given["cu_seq_lens_q"][rows + 1 :], batch.size),
        ("logits_indices", given["logits_indices"][predicted:], 0),
    ]
    for name, ends in given["cu_seq_lens_k"].items():
        tails.append((f"cu_seq_lens_k[{name}]", ends[rows + 1 :], int(ends[rows])))
    table = given.get("block_table")
    for name, part in batch.parts.items():
        if table is not None:
            tails.append((f"block_table[{name}]", table[part.allocator.index, rows:].flatten(), -1))
            continue
        index = given["write_index"][part.allocator.index]
        tails.append((f"write_index[{name}]", index[batch.size :], part.trash[2]))
    for name, mask in masks_of(batch).items():
        if mask.numel() <= LARGEST_MASK:
            unused = mask[0, 0, batch.size :] == 0  # Whether a padded query attends to a key.
            tails.append((f"attention_mask[{name}]", unused.flatten(), 0))
    for name, tail, right in tails:
        if len(tail):
            yield expected(f"{name} (padding)", tail, [right] * len(tail))


def masks_of(batch: Batch) -> dict[str, Tensor]:
    """Return the masks of a batch by group. Groups whose kernel needs no mask are omitted."""
    given = batch.given.get("attention_mask")
    masks = given if isinstance(given, dict) else dict.fromkeys(batch.parts, given)
    return {name: mask for name, mask in masks.items() if mask is not None}


def new_tokens(batch: Batch, part: Part, lists: Lists) -> Iterator[StaticInput]:
    """Yield whether the entries of new tokens in a window's list are valid.

    Each must be the index that stands for a new token, or the slot of the token.
    """
    places = [
        torch.arange(max(0, end - one.computed), end)
        for one, end in zip(batch.requests, lists.ends, strict=True)
    ]
    entries = lists.read.cpu()[torch.cat(places)]
    right = (entries == part.trash[1]) | (entries == lists.write.cpu())
    yield expected(f"new tokens in read_index[{part.name}]", right, [1] * batch.size)


def mask_of(batch: Batch, part: Part, mask: Tensor) -> StaticInput:
    """Return the keys that each live token attends to, with the keys in its window as expected."""
    queries, keys = mask.shape
    ends = batch.given["cu_seq_lens_k"][part.name].tolist()
    keys = max(keys, *ends)
    right = torch.zeros(batch.size, keys, dtype=torch.bool)
    first = 0
    for row, one in enumerate(batch.requests):
        begin, end = ends[row], ends[row + 1]
        last = one.cached + one.computed
        position = torch.arange(one.cached, last)[:, None]
        key = torch.arange(last - (end - begin), last)
        seen = key <= position
        if part.window is not None:
            seen &= position - key < part.window
        right[first : first + one.computed, begin:end] = seen
        first += one.computed
    name, held = f"attention_mask[{part.name}]", mask[: batch.size] == 0
    return expected(name, held, right, size=queries)


def statics_of(io: Any, batch: Batch | None) -> list[StaticInput]:
    """Return the static inputs of graphs. Without a batch, they are described as at capture."""
    count = size = padded = rows = predicted = reads = 0
    if batch is not None:
        count, size, padded = len(batch.requests), batch.size, batch.padded
        rows = len(batch.given["cu_seq_lens_q"]) - 1
        predicted = sum(one.predicted for one in batch.requests)
        reads = max((int(one.numel()) for one in batch.given["read_index"]), default=0)
    valid = {
        "input_ids": (0, int(io.config.vocab_size)),
        "position_ids": (0, int(io.cache.max_tokens_read)),
        "logits_indices": (0, max(size, 1)),
    }
    given: dict[str, tuple[Tensor, int, int]] = {
        "input_ids": (io.input_ids, size, padded),
        "position_ids": (io.position_ids, size, padded),
        "logits_indices": (io.logits_indices, predicted, rows),
        "cu_seq_lens_q": (io.cumulative_seqlens_q, count + 1, rows + 1),
        "carry_over_ids": (io.carry_over_ids, size, padded),
    }
    for name, tensor in io.cumulative_seqlens_k.items():
        given[f"cu_seq_lens_k[{name}]"] = tensor, count + 1, rows + 1
    for number, name in enumerate(io.cache.cache_allocators):
        lists = None if batch is None else batch.lists[name]
        ends = 0 if lists is None or not lists.ends else lists.ends[-1]
        given[f"write_index[{name}]"] = io.write_index_storage[number], size, padded
        given[f"read_index[{name}]"] = io.read_index_storage[number], ends, reads
        if (mask := (io.attention_mask or {}).get(name)) is not None:
            given[f"attention_mask[{name}]"] = mask, 1, 1
    if io.block_table.numel():
        given["block_table"] = io.block_table, len(io.block_table), len(io.block_table)
    return [
        StaticInput(name, tensor, live, max(live, used), valid=valid.get(name))
        for name, (tensor, live, used) in given.items()
    ]


def given_of(batch: Batch) -> list[StaticInput]:
    """Return the arguments of the model, to compare with those that a graph captured."""
    names = {part.allocator.index: name for name, part in batch.parts.items()}
    found = inputs_of(batch.given, names)
    if batch.given.get("block_table") is not None:
        found["block_table"] = batch.given["block_table"]
    return [StaticInput(f"{name} of the batch", one, 0, 0) for name, one in found.items()]
