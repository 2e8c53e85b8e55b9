"""The stand-ins for attention to chosen keys read these alone, and those of an indexer rotate."""

import pytest
import torch

from paritybit.connectors.attention import attend
from paritybit.drive.stand_ins.sparse import (
    Indexed,
    attended,
    attended_sparsely,
    best,
    gather_index,
    quantised,
    rotated,
    scores,
    scores_of_pages,
    store_index,
)

WIDTH, ROTARY, SCALE = 8, 4, 0.3
CHOSEN = torch.tensor([[3, 0, 5, -1], [6, 2, 4, 1], [-1, -1, -1, -1]])
COUNTS = torch.tensor([3, 2, 0])


@pytest.mark.parametrize("counted", [True, False])
def test_a_query_attends_to_the_keys_that_were_chosen_for_it(counted: bool) -> None:
    torch.manual_seed(0)
    q, pool = torch.randn(3, 2, WIDTH + ROTARY), torch.randn(7, 1, WIDTH + ROTARY)
    counts = COUNTS if counted else None
    found, *_ = attended_sparsely(q, pool, CHOSEN[:, None], SCALE, WIDTH, topk_length=counts)
    for row, listed in enumerate(CHOSEN):
        mine = listed[: COUNTS[row]] if counted else listed[listed >= 0]
        keys, seen = pool[mine], torch.ones(1, len(mine), dtype=torch.bool)
        right = attend(q[row : row + 1], keys, keys[..., :WIDTH], seen, SCALE)
        assert torch.allclose(found[row : row + 1], right, atol=1e-6)
    if counted:
        latent, rotary = pool[..., :WIDTH][:, None], pool[..., WIDTH:][:, None]
        parts = q[..., WIDTH:], rotary, latent, q[..., :WIDTH], CHOSEN, COUNTS, SCALE
        assert torch.equal(attended(*parts), found)


def test_a_rotation_keeps_lengths_and_undoes_itself() -> None:
    given = torch.eye(8)
    assert torch.allclose(rotated(given).abs(), torch.full((8, 8), 8**-0.5))
    assert torch.allclose(rotated(rotated(given)), given, atol=1e-6)


def test_a_tensor_may_say_that_its_device_has_a_number() -> None:
    held = torch.zeros(2).as_subclass(Indexed)
    assert held.device.index == 0
    assert type(held[:1]) is torch.Tensor


def test_an_indexer_scores_the_keys_of_a_row_from_its_pages_as_from_a_copy() -> None:
    torch.manual_seed(0)
    width, page, (first, second) = 8, 4, ([2, 0], [1, 3])
    cache = torch.full((5, page, width + 4), 255, dtype=torch.uint8)
    keys, table = torch.randn(10, width), torch.tensor([first, second])
    slots = torch.tensor([8, 9, 10, 11, 0, 1, 4, 5, 6, 7])  # Six keys, and four.
    store_index(torch.cat((keys, keys[:1])), cache, torch.cat((slots, torch.tensor([-1]))))
    assert bool((cache[4] == 255).all())
    copied, bounds = torch.zeros(10, width, dtype=torch.float8_e4m3fn), torch.tensor([0, 6, 10])
    factors = torch.zeros(10, 4, dtype=torch.uint8)
    gather_index(cache, copied, factors, table, bounds)
    held, right = quantised(keys)
    assert torch.equal(copied.float(), held.float())
    assert torch.equal(factors.view(torch.float32), right)
    assert torch.allclose(held.float() * right, keys, rtol=0.07)
    q, weights = torch.randn(2, 1, 3, width).to(torch.float8_e4m3fn), torch.rand(2, 3)
    counts = torch.tensor([[6], [4]])
    paged = scores_of_pages((q, None), cache[:, :, None], weights, counts, table, max_model_len=9)
    dense = scores((q[:, 0], None), (copied, right[:, 0]), weights, bounds[:-1], bounds[1:], 9)
    assert torch.allclose(paged, dense)
    assert paged.isinf().sum(1).tolist() == [3, 5]


def test_the_best_keys_of_a_row_are_among_its_first_ones() -> None:
    given, found = torch.tensor([[1.0, 9, 5, 7], [2, 4, 8, 6]]), torch.zeros(3, 3, dtype=torch.int)
    best(given, torch.tensor([[4], [2]]), found, 3)
    assert found.tolist() == [[1, 3, 2], [1, 0, -1], [0, 0, 0]]
