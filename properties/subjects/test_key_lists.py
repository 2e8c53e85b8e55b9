"""Lists of keys that are too long."""

import pytest
import torch
from paritybit.subjects.key_lists import Queries, list_keys


def test_more_keys_than_there_are_cannot_be_listed() -> None:
    """The host counts the keys. A count that is too high raises IndexError."""
    table = torch.arange(8, dtype=torch.int32).view(2, 4)
    rows, seq_lens = torch.tensor([0, 1]), torch.tensor([3, 2])
    right = Queries(rows, seq_lens, seq_lens, 2)
    assert list_keys(right, 1, table)["kv_indices"].tolist() == [0, 1, 2, 4, 5]
    with pytest.raises(IndexError):
        list_keys(Queries(rows, seq_lens, seq_lens + 1, 2), 1, table)
