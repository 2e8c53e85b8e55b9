"""The weights that a row of a batch uses are those of its request's adapter."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.sglang.adapters import buffers_used
from paritybit.connectors.sglang.models import Model
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.facts import Row
from properties.connectors import parts

RIGHT = ([1, 2, 3], [0, 4, 0, 8])
"""The buffers of the three rows, and the ranks of the four buffers."""


def judged(indices: list[int], ranks: list[int], drafts: bool = False, **more: Any) -> set[str]:
    """Return the wrong inputs of a batch with the first adapter, none, and the second one."""
    given = torch.tensor([*indices, 0], dtype=torch.int32)
    info = {"num_segments": 3, "permutation": None, "weight_indices": given}
    info |= {"lora_ranks": torch.tensor(ranks)} | more
    manager = SimpleNamespace(
        memory_pool=SimpleNamespace(buffer_id_to_uid=[object(), "first", None, "second"]),
        lora_backend=SimpleNamespace(batch_info=SimpleNamespace(**info)),
    )
    found = buffers_used(model(manager, drafts), *batch("first", None, "second"))
    assert not found or [static.name for static in found] == ["weight_indices", "lora_ranks"]
    return {one.name for one in found if one.tensor.tolist() != wanted(one.expected)}


def wanted(expected: torch.Tensor | None) -> list[int]:
    """Return expected values as a list."""
    assert expected is not None
    return list(expected)


def model(manager: Any, drafts: bool = False) -> Model:
    """Return a model with a manager of adapters."""
    pool: Any = None
    return Model(pool, drafts, runner=parts.kept(parts.Part(lora_manager=manager)))


def batch(*names: str | None) -> tuple[Rows, list[Any]]:
    """Return the rows of requests with these adapters, and the requests in another order."""
    rows = [Row(f"{number}", [], 0, 0, {}) for number in range(len(names))]
    made = [parts.Part(rid=f"{number}", lora_id=name) for number, name in enumerate(names)]
    return Rows(rows, [*range(len(names))]), made[::-1]


@pytest.mark.parametrize(
    ("indices", "ranks", "found"),
    [
        (*RIGHT, set()),
        ([1, 0, 3], RIGHT[1], set()),
        ([3, 2, 1], RIGHT[1], {"weight_indices"}),
        ([1, 2, 0], [1, 1, 0, 1], {"weight_indices"}),
        ([1, 3, 3], RIGHT[1], {"lora_ranks"}),
        (RIGHT[0], [0, 0, 0, 8], {"lora_ranks"}),
    ],
)
def test_a_row_uses_the_weights_of_its_request(
    indices: list[int], ranks: list[int], found: set[str]
) -> None:
    """The base model is a buffer with the rank 0, or one with another adapter's old weights."""
    assert judged(indices, ranks) == found


ONE = {"num_segments": 1, "weight_indices": torch.tensor([0]), "lora_ranks": torch.tensor([4])}


def test_an_adapter_that_no_buffer_has_is_none_of_them() -> None:
    manager = SimpleNamespace(
        memory_pool=SimpleNamespace(buffer_id_to_uid=["first"]),
        lora_backend=SimpleNamespace(batch_info=SimpleNamespace(**ONE)),
    )
    index, _ = buffers_used(model(manager), *batch("gone"))
    assert wanted(index.expected) == [-1]


def test_batches_in_other_segments_are_judged_by_the_buffers_of_their_requests() -> None:
    wrong, order = [3, 2, 1], torch.arange(3)
    assert judged(wrong, RIGHT[1], permutation=order) == set()
    assert judged(wrong, RIGHT[1], num_segments=2) == set()
    for of_requests, found in (([1, 2, 3, 0], set()), (wrong, {"weight_indices"})):
        mine = torch.tensor(of_requests)
        other = {"permutation": order, "num_segments": 2, "req_weight_indices": mine}
        assert judged(wrong, RIGHT[1], False, **other) == found


def test_nothing_is_judged_without_a_prepared_batch_of_the_target() -> None:
    backend = SimpleNamespace(batch_info=None)
    pool = SimpleNamespace(buffer_id_to_uid=["first"])
    prepared = SimpleNamespace(batch_info=SimpleNamespace(**ONE))
    for manager in (
        None,
        SimpleNamespace(memory_pool=SimpleNamespace(), lora_backend=prepared),
        SimpleNamespace(memory_pool=pool, lora_backend=backend),
        SimpleNamespace(memory_pool=pool, lora_backend=prepared, attn_dp_enabled=True),
    ):
        assert not buffers_used(model(manager), *batch("first"))
    assert judged([3, 2, 1], RIGHT[1], drafts=True) == set()
