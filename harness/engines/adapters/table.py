"""The adapters, by the name of their engine."""

from collections.abc import Mapping

from paritybit.harness.engines.adapters.adapter import Adapter
from paritybit.harness.engines.adapters.sglang import SglangAdapter
from paritybit.harness.engines.adapters.vllm import VllmAdapter

ALL: tuple[Adapter, ...] = (SglangAdapter(), VllmAdapter())

ADAPTERS: Mapping[str, Adapter] = {adapter.name: adapter for adapter in ALL}
"""Every engine that can be put on trial."""
