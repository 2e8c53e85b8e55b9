"""The memory that a sleeping vLLM gives up on a CPU, and the weights that it loads."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from paritybit.drive.vllm.serving import keep_weights, load_weights
from paritybit.drive.vllm.sleep import Memory


def test_memory_that_was_given_up_has_other_bytes_and_what_was_kept_comes_back() -> None:
    memory, outside = Memory(), torch.zeros(4)
    with memory.use_memory_pool("runtime"):
        index = torch.arange(8)
        outside.add_(1)
        with memory.use_memory_pool("kv_cache"):
            kv, sizes = torch.zeros(3, 4)[1:], torch.tensor([16, 32])
        table = torch.ones(2)
    with memory.use_memory_pool("weights"):
        weights = torch.full((4,), 2.0)
    memory.sleep(("runtime",))
    dropped = kv[0, 0].item()
    assert dropped
    assert {*sizes.tolist()}.isdisjoint((16, 32))
    assert index.tolist() != [*range(8)]
    assert outside.tolist() == [1] * 4
    memory.wake_up(["weights"])
    assert index.tolist() == [*range(8)]
    assert table.tolist() == [1, 1]
    memory.wake_up()
    assert {*weights.tolist(), *kv.flatten().tolist()} == {dropped}
    kv.zero_()
    memory.discard(("weights",))
    assert kv.sum() == 0
    del index, table
    memory.sleep()  # What is no longer in use is left alone.


def test_an_update_loads_other_weights_and_kept_ones_come_back() -> None:
    model, given = nn.Linear(3, 4), list[dict[str, Any]]()

    def load(weights_iterator: Any, is_checkpoint_format: bool) -> None:
        given.append(dict(weights_iterator))

    runner = SimpleNamespace(get_model=lambda: model)
    worker = SimpleNamespace(model_runner=runner, reload_weights=load)
    before = model.weight.detach().clone()
    keep_weights(worker)
    with torch.no_grad():
        model.weight.zero_()
    load_weights(worker)
    assert torch.equal(given[0]["weight"], before)
    assert given[0].keys() == {"weight", "bias"}
    with torch.no_grad():
        model.weight.copy_(before)
    load_weights(worker, 1)
    assert given[1].keys() == {"weight"}
    assert not torch.equal(given[1]["weight"], before)
    assert given[1]["weight"].sum().isclose(before.sum())
