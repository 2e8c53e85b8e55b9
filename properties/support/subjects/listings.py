"""What CUDA lists, as checks that raise `AssertionError`: what a CPU does, bit by bit.

Run on CUDA where it is, else under Triton's interpreter, by a process that imports Triton so.
"""

import random
from typing import Any

import torch
from paritybit.reference.config import SPECULATION
from paritybit.reference.pool import PoolSizes, Tables
from paritybit.subjects import key_lists, states
from paritybit.subjects.listing import host
from torch import Tensor

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
    alike(name, expected, found)


def alike(name: str, expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Check that tensors are what they must be, by their names."""
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


def check_translations(module: Any, device: str) -> None:
    """Check that locations of any width and shape are translated as a CPU does, -1 too."""
    mapping = torch.tensor([0, 7, 0, 5, 9, -1])
    for dtype in (torch.int32, torch.int64):
        loc = torch.tensor([[3, 0, -1], [4, 1, 1]] * module.TILE, dtype=dtype)
        for given in (loc, loc[:, 1], loc[0]):
            expected = mapping.take(given.long()).to(torch.int32)
            found = module.translate(mapping.to(device), given.to(device))
            alike("translated", {"slots": expected}, {"slots": found})


def check_tables(module: Any, device: str) -> None:
    """Check that tables hold what is written, of more slots than one step writes, and no more.

    And that what is read of both kinds, of more of one of them, is what a CPU reads.
    """
    count = module.TILE + 3
    rows, columns = torch.arange(count) % 7, torch.arange(count) // 7
    full = torch.arange(count).flip(0) + 2
    table, mapping = torch.zeros((7, count), dtype=torch.int32), torch.zeros(count + 3).long()
    given = table.to(device), mapping.to(device)
    module.write(*given, *(one.to(device) for one in (rows, columns, full, full * 3)))
    table[rows, columns], mapping[full] = full.int(), full * 3
    alike("tables", named((table, mapping)), named(given))
    tables = Tables(PoolSizes(full_slots=count + 1), count, torch.device("cpu"))
    tables.req_to_token, tables.full_to_swa_index_mapping = table, mapping
    cells = torch.arange(table.numel()).flip(0)
    for some in ((cells, cells[:3]), (cells[2:4], cells), (cells[:0], cells[:1])):
        found = module.read(*given, *(one.to(device) for one in some))
        alike("slots", named(tables.read(*some)), named(found))


def check_drafts(module: Any, device: str) -> None:
    """Check what a module lists of trees to verify, of more requests than one step lists."""
    generator = torch.Generator().manual_seed(0)
    drafts = SPECULATION.draft_tokens
    width = key_lists.page_table_width(WINDOW)
    table = torch.randint(1, 2**20, (TABLE_ROWS, 40), generator=generator, dtype=torch.int32)
    for requests in (1, 3, module.TILE + 2):
        for dtype in (torch.int32, torch.int64):
            rows = torch.randint(TABLE_ROWS, (requests,), generator=generator)
            # As long as a row, so that the last drafts lie beyond it.
            seq_lens = torch.randint(41, (requests,), generator=generator, dtype=dtype)
            depths = torch.randint(drafts, (requests, drafts), generator=generator)
            positions = (seq_lens[:, None] + depths).flatten()
            positions[:drafts] = 0
            given = rows, seq_lens, positions, WINDOW, table
            lists = key_lists.tree_lists(*given)
            alike(
                "lists of trees", lists, module.tree_lists(*(moved(one, device) for one in given))
            )
            # A page table is a part of a buffer that may be larger.
            page_table = torch.cat([lists["swa_page_table"], torch.arange(5, dtype=torch.int32)])
            tokens = lists["window_key_begin"], lists["mask_indptr"]
            keys = page_table, lists["window_kv_offsets"], *tokens, width
            made = module.tree_keys(*(moved(one, device) for one in keys))
            alike("keys of trees", named(key_lists.tree_keys(*keys)), named(made))


def check_paths(module: Any, device: str) -> None:
    """Check the paths that a module makes of slots far apart, and the parents in drawn trees."""
    generator = torch.Generator().manual_seed(0)
    drafts = SPECULATION.draft_tokens

    def drawn(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    for requests in (1, 3, module.TILE + 2):
        slots, tokens = drawn(0, 9, 2 * requests)[::2], requests * drafts
        seq_lens, parents = drawn(0, 5, requests).int(), drawn(-1, drafts, tokens)
        token_requests = drawn(0, requests, tokens).sort().values
        lengths = drafts * (seq_lens.long() + drafts)
        begins = lengths.cumsum(0) - lengths
        node = torch.arange(drafts)
        mask_indptr = (begins[:, None] + node * (seq_lens[:, None] + drafts)).flatten()
        # Two bits are missing: those of the last node's own and of the one before it.
        custom_mask = drawn(0, 2, int(lengths.sum()) - 2).bool()
        positions = drawn(0, 3, tokens)
        calls: dict[str, tuple[Any, ...]] = {
            "decode_paths": (slots,),
            "verify_paths": (slots, parents),
            "extend_paths": (slots, token_requests, positions, 4),
            "parents_in_tree": (custom_mask, mask_indptr, seq_lens),
        }
        for name, given in calls.items():
            expected = getattr(states, name)(*given)
            found = getattr(module, name)(*(moved(one, device) for one in given))
            if name == "parents_in_tree":
                alike(name, {name: expected}, {name: found})
            else:
                assert found.longest == expected.longest
                kept = "sources", "targets", "parents"
                alike(
                    name, *({key: getattr(one, key) for key in kept} for one in (expected, found))
                )


def named(tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return tensors by their places."""
    return {str(place): tensor for place, tensor in enumerate(tensors)}
