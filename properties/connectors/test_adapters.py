"""The weights that each token of a batch uses are those of its request's adapter."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.sglang.models import Model
from paritybit.connectors.sglang.rows import Rows
from paritybit.connectors.sglang.sampling import buffers_used
from paritybit.watch.facts import Row
from properties.connectors import parts

OWNERS = [object(), "first", None, "second"]
RANKS = [0, 4, 0, 8]
NAMES, LENGTHS = ("first", None, "second"), (2, 1, 3)
"""The adapters of three rows, and their numbers of tokens."""


def by_row(**changes: Any) -> SimpleNamespace:
    """Return a batch with a segment per row, as the backend `triton` has it."""
    info = {"bs": 3, "num_segments": 3, "seg_lens": [2, 1, 3, 0], "seg_indptr": [0, 2, 3, 6, 6]}
    return prepared(info | {"weight_indices": [1, 2, 3, 0], "permutation": None} | changes)


def in_chunks(**changes: Any) -> SimpleNamespace:
    """Return a batch with segments of any tokens, as the backend `csgmv` has it in a graph."""
    info = {"bs": 3, "num_segments": 3, "seg_lens": [0] * 4, "seg_indptr": [0, 3, 5, 6, 6]}
    order = {"weight_indices": [3, 1, 2, 0], "permutation": [3, 4, 5, 0, 1, 2, 0]}
    return prepared(info | order | {"use_cuda_graph": True} | changes)


def prepared(info: dict[str, Any]) -> SimpleNamespace:
    given = {"use_cuda_graph": False, "lora_ranks": RANKS} | info
    held = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in given.items()}
    return SimpleNamespace(**held)


def model_of(weights: torch.Tensor) -> Model:
    """Return a model whose buffers hold these weights of one layer."""
    pool = {"A_buffer": {"v_proj": [weights]}, "B_buffer": {}, "max_lora_rank": 8}
    pool |= {"buffer_id_to_uid": OWNERS, "load_lora_weight_to_buffer": None}
    manager = SimpleNamespace(memory_pool=SimpleNamespace(**pool), lora_backend=SimpleNamespace())
    unused: Any = None
    return Model(unused, drafts=False, runner=parts.kept(parts.Part(lora_manager=manager)))


def judged(info: SimpleNamespace, model: Model) -> set[str]:
    """Return the wrong inputs of a batch with the first adapter, none, and the second one."""
    model.runner.lora_manager.lora_backend.batch_info = info
    found = Rows(
        [Row(f"{n}", [], 0, length, {}) for n, length in enumerate(LENGTHS)], [*range(len(NAMES))]
    )
    requests = [parts.Part(rid=f"{n}", lora_id=name) for n, name in enumerate(NAMES)][::-1]
    batch = SimpleNamespace(forward_mode=SimpleNamespace(name="EXTEND"))
    wrong = set[str]()
    for one in buffers_used(model, batch, found, requests):
        assert one.expected is not None
        if not torch.equal(one.tensor, one.expected):
            wrong.add(one.name)
    return wrong


WRONG = {"weight_indices"}


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (by_row(), set()),
        (by_row(weight_indices=[3, 2, 1, 0]), WRONG),
        (by_row(lora_ranks=[0, 4, 4, 8]), WRONG),
        (by_row(seg_lens=[1, 1, 3, 0]), WRONG),
        (in_chunks(), set()),
        (in_chunks(seg_lens=None), set()),
        (in_chunks(seg_indptr=[0, 3, 5, 6, 4], weight_indices=[3, 1, 2, 3]), set()),
        (in_chunks(seg_indptr=[0, 3, 5, 4, 6], weight_indices=[3, 1, 2, 3]), WRONG),
        (in_chunks(permutation=[3, 4, 2, 0, 1, 5, 0]), WRONG),
    ],
)
def test_each_token_uses_the_weights_of_its_request_once(
    info: SimpleNamespace, found: set[str]
) -> None:
    """The base model is a buffer with the rank 0, or none. What a graph has room for runs, too."""
    assert judged(info, model_of(torch.ones(len(OWNERS), 8, 4))) == found


def test_an_adapter_has_the_same_weights_each_time_it_is_loaded() -> None:
    held = torch.ones(len(OWNERS), 8, 4)
    model = model_of(held)
    assert judged(by_row(), model) == set()
    held[3] = 0.5  # What is loaded for another adapter.
    model.loaded[3] = "third"
    assert judged(by_row(), model) == {"weights of an adapter"}
