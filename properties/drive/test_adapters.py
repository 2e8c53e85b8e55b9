"""LoRA adapters: who asks for them, and the arithmetic in place of vLLM's kernels."""

from collections.abc import Callable
from itertools import accumulate, islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.drive.models import MODELS
from paritybit.drive.operating.adapters import with_adapters
from paritybit.drive.operating.sglang import loads
from paritybit.drive.requests import Limits, waves, with_spaces
from paritybit.drive.sglang.settings import SglangServed
from paritybit.drive.vllm import lora as of_vllm
from paritybit.engines.graphs import CpuGraph

LIMITS = Limits(window=16, page=1, chunk=64, context=1536, pool=1536, rows=8)

vllm_lora: Any = of_vllm


def test_requests_ask_for_every_adapter_and_for_none() -> None:
    served = SglangServed("gpt_oss", adapters=3)
    first, again = (list(islice(served.requests(), 4)) for _ in range(2))
    assert first == again
    asked = {one.adapter for wave in first for one in wave.requests}
    assert asked == {None, 1, 2, 3}
    plain = with_spaces(0, islice(waves(0, LIMITS), 4))
    assert list(with_adapters(0, plain, 3)) == first


@pytest.mark.parametrize("model", ["gpt_oss", "qwen2_vl"])
def test_adapters_that_are_loaded_again_have_other_weights_and_identifiers(model: str) -> None:
    def load(lora_name: str, lora_id: str, config_dict: Any, serialized_tensors: str) -> Any:
        return lora_name, lora_id, serialized_tensors

    structures = SimpleNamespace(
        LoadLoRAAdapterFromTensorsReqInput=load,
        UnloadLoRAAdapterReqInput=lambda lora_name, lora_id: (lora_name, lora_id),
    )
    first, again = (loads(structures, MODELS[model], 2, version=one) for one in (0, 1))
    assert [one[:2] for one in again[::2]] == [one[:2] for one in first]  # It unloads these.
    for old, new in zip(first, again[1::2], strict=True):
        assert old[0] == new[0]
        assert old[1] != new[1]
        assert old[2] != new[2]


def sorted_by(slots: list[int], count: int) -> list[Any]:
    """Return what vLLM tells its kernels of tokens with these slots, of `count` and none."""
    order = sorted(range(len(slots)), key=lambda token: slots[token])
    ids = sorted(set(slots))
    counts = [slots.count(one) for one in ids]
    spare = [0] * (count + 1 - len(ids))
    starts = [0, *accumulate([*counts, *spare])]
    ids += [-1 for _ in spare]
    return list(map(torch.tensor, (slots, order, [*counts, *spare], starts, ids)))


@pytest.mark.parametrize("add", [True, False])
def test_vllms_arithmetic_is_that_of_each_tokens_adapter_also_in_a_replay(
    add: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 1, *shape, generator=generator) for shape in ((3, 6), (5, 3)))
    x, base = torch.randn(4, 6, generator=generator), torch.randn(4, 12, generator=generator)
    lists: list[Any] = sorted_by([1, -1, 0, 1], 2)
    counts: list[Any] = [torch.tensor([False]), torch.tensor([3])]
    parts: list[Callable[[], object]] = []
    recording = SimpleNamespace(open=True, end=lambda: None, begin=lambda: None, parts=parts)
    monkeypatch.setattr(CpuGraph, "recording", recording)
    within, output = torch.full((2, 4, 3), torch.nan), base.clone()

    def right(slots: list[int]) -> torch.Tensor:
        made = base.clone()
        for token, slot in enumerate(slots):
            if slot >= 0:
                one = b[slot, 0] @ (0.5 * (a[slot, 0] @ x[token]))
                old = base[token, 2:12] if add else 0
                made[token, 2:12] = old + torch.cat((one, one))
        return made

    vllm_lora.shrink(x, [a, a], within, *lists, *counts, 0.5)
    vllm_lora.expand(within, [b, b], output, *lists, *counts, offset_start=2, add_inputs=add)
    assert torch.allclose(output, right([1, -1, 0, 1]), atol=1e-5)
    for old, new in zip(lists, sorted_by([-1, 0, 0, 0], 2), strict=True):
        old.copy_(new)
    output.copy_(base)
    for part in parts:
        part()
    assert torch.allclose(output, right([-1, 0, 0, 0]), atol=1e-5)
    vllm_lora.expand(within, [b, b], output, *lists, ~counts[0], counts[1])  # No adapter.
    assert torch.allclose(output, right([-1, 0, 0, 0]), atol=1e-5)
