"""The stand-in for flash attention computes the same from lists and from tables of blocks."""

import sys
from types import SimpleNamespace

import pytest
import torch

from paritybit.drive.configs import LackingError
from paritybit.drive.transformers.serving import Transformers
from paritybit.drive.transformers.settings import TransformersServed
from paritybit.drive.transformers.stand_ins import varlen, with_tables

PAGE = 2


def test_tables_of_blocks_have_the_attention_of_whole_sequences() -> None:
    torch.manual_seed(0)
    cached, width = [3, 0], 8
    k_cache, v_cache = torch.zeros(2, 6, PAGE, 1, width)
    tables = torch.tensor([[4, 1], [2, 0], [0, 0]])
    q, k, v = torch.randn(3, 1, 2, width), *torch.randn(2, 3, 1, 1, width)
    keys, values = [], []
    for row, count in enumerate(cached):
        old = torch.randn(2, count, 1, width)
        position = torch.arange(count)
        place = tables[row, position // PAGE], position % PAGE
        k_cache[place], v_cache[place] = old
        keys += [old[0], k[row]]
        values += [old[1], v[row]]
    lengths = torch.tensor([*cached, -1])  # The last row is padding.
    found = with_tables(q, k_cache, v_cache, k, v, lengths, tables, 0.5, causal=True)
    starts = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 4, 5, 5])
    whole = varlen(q[:, 0], torch.cat(keys), torch.cat(values), *starts, 1, 4, 0.5, causal=True)
    assert torch.allclose(found[:, 0], whole)
    assert k_cache[1, 1].equal(k[0, 0])  # The new token of the first sequence is at position 3.
    assert not k_cache[0].any()  # Padding writes nothing.


def test_a_release_that_captures_no_flash_attention_lacks_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = SimpleNamespace(create_causal_mask=lambda past_key_values: None)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", older)
    with pytest.raises(LackingError, match="captures no graphs"):
        Transformers(TransformersServed(full=True, tables=True))._manager(None)
