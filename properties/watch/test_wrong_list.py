"""What the lists of padded rows may name."""

import pytest
import torch

from paritybit.watch.checks import wrong_list
from paritybit.watch.facts import Forward, Group, IndexList, Layer, Row
from paritybit.watch.ledger import Ledger, Names
from paritybit.watch.observations import Lists


@pytest.mark.parametrize(
    ("entries", "page", "found"),
    [
        ([9, 0, 1], 1, ()),
        ([9, 5, 7], 1, (5, 7)),
        ([9, 0, 5], 1, (5,)),
        ([1, 0, 0], 8, ()),
        ([1, 2, 0], 8, (16,)),
    ],
)
def test_padded_rows_name_reserved_slots_only(
    entries: list[int], page: int, found: tuple[int, ...]
) -> None:
    layer = Layer("layer 0", (torch.zeros(32, 1),))
    ledger = Ledger(Group("full", (layer,), reserved=frozenset({0, 1}), page_size=page), Names())
    row = Row("a", [4, 5], 1, 1, {"full": torch.tensor([8, 9])})
    given = IndexList(
        "kv_indices",
        "full",
        torch.tensor(entries),
        torch.arange(3),
        torch.ones(3, dtype=torch.int64),
        page=page,
        window=1 if page == 1 else None,
    )
    lists = Lists(1, Forward("decode", (row,)), ledger, given)
    assert tuple(slot for one in wrong_list.judge(lists) for slot in one.slots) == found
