"""The stand-ins for attention to chosen keys read these alone, and those of an indexer rotate."""

import pytest
import torch

from paritybit.drive.stand_ins.attention import attend
from paritybit.drive.stand_ins.sparse import Indexed, attended, attended_sparsely, rotated

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
