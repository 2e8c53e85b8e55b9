"""A forward pass of vLLM that does more than write KV runs only once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.vllm.effects import once
from paritybit.connectors.vllm.pools import Pool
from paritybit.watch.facts import Group, Layer

KV = torch.zeros(2, 8, 4)

POOL = Pool(
    (Group("blocks", (Layer("layer 0", (KV[0], KV[1])),)),), 4, (None,), ("layer 0",), (), ()
)


def config(**layers: Any) -> Any:
    """Return an engine's configuration with some layers."""
    held = {name: SimpleNamespace(kv_cache=tensor) for name, tensor in layers.items()}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1, enable_eplb=False),
        cache_config=SimpleNamespace(calculate_kv_scales=False),
        model_config=SimpleNamespace(enable_return_routed_experts=False),
        compilation_config=SimpleNamespace(static_forward_context=held),
        kv_transfer_config=None,
    )


@pytest.mark.parametrize(
    ("part", "name", "value", "reason"),
    [
        ("parallel_config", "tensor_parallel_size", 2, "waits for other ranks"),
        ("parallel_config", "decode_context_parallel_size", 2, "waits for other ranks"),
        ("parallel_config", "enable_eplb", True, "counts the load of experts"),
        ("model_config", "enable_return_routed_experts", True, "records the experts"),
        ("cache_config", "calculate_kv_scales", True, "sets the scales of KV"),
    ],
)
def test_a_setting_that_gives_a_forward_other_effects_is_named(
    part: str, name: str, value: object, reason: str
) -> None:
    given = config(attention=KV)
    assert once(given, POOL) is None
    setattr(getattr(given, part), name, value)
    assert reason in str(once(given, POOL))
