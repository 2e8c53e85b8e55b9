"""Lists of keys that are too long."""

import pytest
import torch
from paritybit.subjects.listing import list_rows


def test_more_keys_than_there_are_cannot_be_listed() -> None:
    """The host counts the keys. A count that is too high raises IndexError."""
    table = torch.arange(8, dtype=torch.int32).view(2, 4)
    rows, seq_lens = torch.tensor([0, 1]), torch.tensor([3, 2])
    assert list_rows(rows, seq_lens, (5, 2), 1, table, None)["kv_indices"].shape == (5,)
    for totals in ((6, 2), (5, 3)):
        with pytest.raises(IndexError):
            list_rows(rows, seq_lens, totals, 1, table, None)
