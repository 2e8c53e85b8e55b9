"""What lists slots on CUDA must list, as a check that raises `AssertionError`: what a CPU lists.

Run on CUDA where it is, else under Triton's interpreter, by a process that imports Triton so.
"""

import random
from typing import Any

import torch
from torch import Tensor

from subjects.listing import host

WINDOW = 6

TABLE_ROWS = 9

DRAWS = 8


def check_listings(module: Any, device: str) -> None:
    """Check what a module lists of drawn requests, against the host's lists.

    There are more requests, and more keys of one, than one step of a program lists. The host
    counts as many keys as there are, or fewer. Beyond all requests there are tokens.
    """
    most = module.TILE + 8
    generator = torch.Generator().manual_seed(0)
    shape = TABLE_ROWS, 2 * most + TABLE_ROWS
    table = torch.randint(1, 2**20, shape, generator=generator, dtype=torch.int32)
    for seed in range(DRAWS):
        draw = random.Random(seed)
        requests, longest = ((1, 2 * most), (3, most), (8, most), (most, 8))[seed % 4]
        lengths = [draw.randint(1, longest) for _ in range(requests)]
        ran = [draw.randint(0, 4) for _ in lengths]
        rows = torch.tensor([draw.randrange(TABLE_ROWS) for _ in lengths])
        width = torch.int32 if seed % 2 else torch.int64
        seq_lens, counts = torch.tensor(lengths, dtype=width), torch.tensor(ran, dtype=width)
        shift = torch.tensor([draw.randint(0, length) for length in lengths], dtype=width), rows
        fewer = draw.choice((0, 0, 1))
        totals = sum(lengths) - fewer, sum(min(length, WINDOW) for length in lengths) - fewer
        for shifted in (None, shift):
            same(module, device, "list_rows", rows, seq_lens, totals, WINDOW, table, shifted)
        unseen = [max(a - b - WINDOW + 1, 0) for a, b in zip(lengths, ran, strict=True)]
        totals = totals[0], sum(lengths) - sum(unseen) - fewer
        tokens = sum(ran) + draw.randint(0, 3)
        same(module, device, "list_spans", rows, seq_lens, counts, totals, tokens, WINDOW, table)


def same(module: Any, device: str, name: str, *given: Any) -> None:
    """Check that a module's function gives what the host's does."""
    expected = getattr(host, name)(*given)
    found = getattr(module, name)(*(moved(value, device) for value in given))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        if found[key].dtype != values.dtype or not torch.equal(found[key].cpu(), values):
            raise AssertionError(f"{name}: {key} is {found[key].tolist()}, not {values.tolist()}")


def moved(value: Any, device: str) -> Any:
    """Return a tensor, or each of several, on a device; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple) and isinstance(value[0], Tensor):
        return tuple(one.to(device) for one in value)
    return value


def check_any_stride(module: Any, device: str) -> None:
    """Check lists of tensors whose elements do not lie side by side, and of part of a table."""
    table = torch.arange(1, 31, dtype=torch.int32).view(3, 10)[:, :6]
    rows, by = torch.tensor([2]).expand(2), torch.tensor([[0], [1]])[:, 0]
    seq_lens = torch.tensor([[4, 0], [3, 0]])[:, 0]
    same(module, device, "list_rows", rows, seq_lens, (7, 7), WINDOW, table, (seq_lens - 1, by))
    same(module, device, "list_spans", rows, seq_lens, by, (7, 7), 1, WINDOW, table)


def check_too_many_are_none(module: Any, device: str) -> None:
    """Check that what the host counts beyond all keys is listed as no slot of any pool."""
    table = torch.arange(1, 9, dtype=torch.int32, device=device).view(2, 4)
    rows, seq_lens = (torch.tensor(values, device=device) for values in ([0, 1], [3, 2]))
    lists = module.list_rows(rows, seq_lens, (7, 3), 1, table, None)
    none = 2**31 - 1
    assert lists["kv_indices"].tolist() == [1, 2, 3, 5, 6, none, none]
    assert lists["window_kv_indices"].tolist() == [3, 6, none]
