"""The surroundings of sglang's code: its settings, and a single rank.

Every value is declared here or, if it is off, in `settings`. Any other name that the engine reads
raises an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paritybit.engines.bags import Bag
from paritybit.engines.loading import Engine
from paritybit.engines.missing import PartMissingError
from paritybit.explore.sglang.settings import ATTENTION, GROUPS, OFF, SIZES, SUBGROUPS


class StubConfig(Bag):
    """A bag with declared values, and with the values that are off for its label."""

    def __init__(self, values: dict[str, Any], label: str) -> None:
        super().__init__({**OFF.get(label, {}), **values}, label)


class Switch:
    """A setting that some releases read, and others call."""

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def __bool__(self) -> bool:
        return self._on

    def __call__(self) -> bool:
        """Return whether it is on."""
        return self._on


class OneRank:
    """A process group of one process."""

    world_size = 1
    rank_in_group = 0
    rank = 0
    local_rank = 0
    is_first_rank = True
    is_last_rank = True
    ranks = (0,)

    def barrier(self) -> None:
        """Return immediately."""


class StubGroups(StubConfig):
    """A bag whose subgroups are the bag itself."""

    def __getattr__(self, name: str) -> Any:
        return self if name in SUBGROUPS else super().__getattr__(name)

    @contextmanager
    def override(self, **values: Any) -> Iterator["StubGroups"]:
        """Have other values within a scope."""
        before = dict(self.__dict__)
        self.__dict__.update(values)
        try:
            yield self
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)


def server_arguments(
    buckets: tuple[int, ...], tokens: tuple[int, ...], page_size: int
) -> dict[str, Any]:
    """Return the settings that are not off."""
    phases: dict[str, Any] = {
        name: StubConfig({"bs": list(sizes), "backend": "full", "max_bs": max(sizes)}, "cuda_graph")
        for name, sizes in (("decode", buckets), ("prefill", tokens))
    }
    return SIZES | {
        "cuda_graph_bs": list(buckets),
        "cuda_graph_bs_decode": list(buckets),
        "cuda_graph_max_bs": max(buckets),
        "torch_compile_max_bs": max(buckets),
        "piecewise_cuda_graph_tokens": list(tokens),
        "piecewise_cuda_graph_max_tokens": max(tokens),
        "piecewise_cuda_graph_compiler": "eager",
        "cuda_graph_config": StubConfig(phases, "cuda_graph_config"),
        "attention_backend": "triton",
        "chunked_prefill_size": max(tokens),
        "page_size": page_size,
        "triton_attention_num_kv_splits": 2,
        "moe_a2a_backend": "none",
        "moe_runner_backend": "auto",
        "deepep_mode": "auto",
        "speculative_num_draft_tokens": 0,
        "disable_cuda_graph_padding": False,
        "disaggregation_mode": "null",
        "disaggregation_decode_retraction_backup": "none",
        "retraction_policy": "length",
        "mamba_radix_cache_strategy": "no_buffer",
        "enable_mamba_extra_buffer": Switch(on=False),
        "enable_mamba_extra_buffer_lazy": Switch(on=False),
        "enable_torch_compile": False,
        "kv_canary": "none",
    }


class Host:
    """The stand-ins for one engine in this process, on one device."""

    def __init__(self, engine: Engine, settings: dict[str, Any], device: str) -> None:
        self.engine = engine
        self.rank = OneRank()
        self.arguments = StubConfig(settings | {"device": device}, "server_args")
        self.bag = StubGroups(settings | {"device": device}, "config")
        groups = {f"{name.lower().strip('_')}_group": self.rank for name in GROUPS}
        self.parallel = StubConfig(SIZES | groups, "parallel")
        self._publish()

    def _publish(self) -> None:
        """Make the engine's own accessors return the settings and the groups.

        Modules of the engine keep the accessor from the time of their import, so the accessor must
        return the values that were published last.
        """
        arguments, bag = self.arguments, self.bag
        self.engine.fill(
            "srt.server_args",
            {
                "get_global_server_args": lambda: (
                    self.engine.module("srt.server_args")._global_server_args
                ),
                "_global_server_args": arguments,
            },
        )
        self.engine.fill("srt.distributed.parallel_state", dict.fromkeys(GROUPS, self.rank))
        self.engine.fill("srt.layers.dp_attention", ATTENTION)
        try:
            context = self.engine.module("srt.runtime_context")
        except PartMissingError:
            return
        if hasattr(context._CONTEXT, "_server_args"):
            context._CONTEXT._server_args = arguments
        if hasattr(context._CONTEXT, "config_bag"):
            type(context._CONTEXT).config_bag = lambda context, name: bag
        context._CONTEXT.parallel = self.parallel
        if hasattr(context, "_PARALLEL"):
            vars(context)["_PARALLEL"] = self.parallel

    def no_speculation(self) -> Any:
        """Return the engine's value for no speculation."""
        return self.engine.part("srt.speculative.spec_info:SpeculativeAlgorithm").NONE
