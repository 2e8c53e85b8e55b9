"""Copies of KV between a pool and the host."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.drive.sglang import host

PAGE, PAGES, LAYERS = 4, 6, 3
POOL = torch.arange(float(LAYERS * PAGES * PAGE * 2)).view(LAYERS, PAGES * PAGE, 1, 2)
MORE = POOL + 1000
SLOTS = torch.tensor([8, 9, 10, 11, 0, 1, 2, 3])
PLACES = torch.tensor([4, 5, 6, 7, 16, 17, 18, 19])


def addresses(layers: Tensor) -> Tensor:
    """Return the addresses of layers."""
    return torch.tensor([layer.data_ptr() for layer in layers])


def by_layer(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    given: dict[str, Any] = {"src_indices": SLOTS, "dst_indices": PLACES, "item_size": 8}
    host.transfer_kv_all_layer(
        addresses(POOL), addresses(k), addresses(MORE), addresses(v), num_layers=LAYERS, **given
    )
    return k, v


def by_row(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    held = [one.view(PAGES * PAGE, LAYERS, 1, 2) for one in (k, v)]
    given: dict[str, Any] = {"src_indices": SLOTS, "dst_indices": PLACES, "item_size": 8}
    host.transfer_kv_all_layer_lf_pf(
        addresses(POOL), held[0], addresses(MORE), held[1], dst_layout_dim=24, num_layers=LAYERS,
        **given,
    )  # fmt: skip
    back = [torch.zeros_like(POOL) for _ in "kv"]
    for layer in range(LAYERS):
        host.transfer_kv_per_layer_pf_lf(
            held[0], held[1], layer, 24, dst_k=back[0][layer], dst_v=back[1][layer],
            src_indices=PLACES, dst_indices=PLACES, item_size=8,
        )  # fmt: skip
    return back[0], back[1]


def by_page(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    held = [one.view(PAGES, LAYERS, PAGE, 1, 2) for one in (k, v)]
    host.transfer_kv_all_layer_direct_lf_pf([*POOL, *MORE], held, SLOTS, PLACES, PAGE)
    back = [torch.zeros_like(POOL) for _ in "kv"]
    for layer in range(LAYERS):
        targets = [one[layer] for one in back]
        host.transfer_kv_per_layer_direct_pf_lf(held, targets, PLACES, PLACES, layer, PAGE)
    return back[0], back[1]


@pytest.mark.parametrize("copy", [by_layer, by_row, by_page])
def test_rows_are_copied_to_the_host_and_back(
    copy: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> None:
    for source, found in zip(
        (POOL, MORE), copy(torch.zeros_like(POOL), torch.zeros_like(POOL)), strict=True
    ):
        assert torch.equal(found[:, PLACES], source[:, SLOTS])
        others = torch.ones(PAGES * PAGE, dtype=torch.bool).index_fill(0, PLACES, 0)
        assert not found[:, others].any()


class Pool:
    """A pool on the host, which keeps freed slots apart until it needs them."""

    def __init__(self) -> None:
        self.free_slots, self.apart = torch.arange(4), torch.empty(0, dtype=torch.int64)

    def free(self, indices: Tensor) -> int:
        """Free slots."""
        self.apart = torch.cat([self.apart, indices])
        return len(indices)

    def _merge_release_slots(self) -> None:
        self.free_slots, self.apart = torch.cat([self.free_slots, self.apart]), self.apart[:0]


def test_a_freed_slot_on_the_host_is_the_next_one() -> None:
    pool = Pool()
    assert host.reused_at_once(Pool.free)(pool, torch.tensor([7, 9])) == 2
    assert pool.free_slots.tolist() == [7, 9, 0, 1, 2, 3]
    assert len(pool.apart) == 0


def test_a_load_finds_no_room_for_its_windows_at_times() -> None:
    """One that brings its own slots needs none."""
    loads = [
        [SimpleNamespace(device_indices=there, host_indices=SLOTS)] for there in (None, PLACES)
    ]
    resolve = host.sometimes_without(lambda _, pools: pools)
    found = [[resolve(None, one) for _ in range(100)] for one in loads]
    assert 2 < found[0].count(None) < 40
    assert None not in found[1]
