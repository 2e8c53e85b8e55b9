"""Speculation on a CPU: the graph runners of CUDA, and the compiled kernels of trees in torch."""

from collections.abc import Mapping
from typing import Any

from paritybit.drive.stand_ins import trees
from paritybit.drive.stand_ins.modules import found, replace_everywhere

WORKERS = (
    "eagle_worker",
    "eagle_worker_v2",
    "multi_layer_eagle_worker",
    "multi_layer_eagle_worker_v2",
    "frozen_kv_mtp_worker",
    "frozen_kv_mtp_worker_v2",
)
"""The modules of workers that draft, by release."""

CAPTURING = ("init_cuda_graphs", "_capture_cuda_graphs")
"""Their methods that choose a graph runner by the kind of device."""


TREES: Mapping[str, tuple[str, Any]] = {
    "sglang.srt.speculative.eagle_utils": ("verify_tree_greedy_func", trees.verify_tree_greedy),
    "sglang.kernels.ops.speculative.spec_tree": (
        "verify_tree_greedy_func",
        trees.verify_tree_greedy,
    ),
}
"""Functions that call a compiled kernel of trees, by the module that has them."""

KERNELS_OF_CUDA = (
    "sglang.srt.speculative.eagle_info_v2",
    "sglang.srt.speculative.triton_ops.cache_locs",
    "sglang.kernels.ops.speculative.cache_locs",
)
"""Modules that launch kernels of Triton on CUDA, and on another device something else, or nothing.

Each asks a flag of its own.
"""

BUILDER = "sgl_build_tree_kernel_efficient"
"""The name under which they import the kernel that builds trees, on CUDA alone."""


def stand_in_for_trees() -> None:
    """Let trees be built and verified in torch, and slots be looked up by the engine's kernel."""
    for place, (name, stand_in) in TREES.items():
        module = found(place)
        if module is not None:
            if hasattr(module, name):
                replace_everywhere(getattr(module, name), stand_in)
            setattr(module, BUILDER, trees.build_tree)
    for place in KERNELS_OF_CUDA:
        module = found(place)
        if hasattr(module, "_is_cuda"):
            module._is_cuda = True


RULES = "sglang.srt.arg_groups.speculative_hook"
"""The module that settles what speculation is served with."""

NO_OVERLAP = "_disable_overlap_schedule_for_cpu"
"""Its function that switches overlap scheduling off on a CPU."""


def overlap_as_on_cuda() -> str | None:
    """Let batches overlap though drafts are made on a CPU, where a release would not."""
    module = found(RULES)
    if module is None or not hasattr(module, NO_OVERLAP):
        return ""
    setattr(module, NO_OVERLAP, lambda server_args: None)
    return None


class AsCuda(str):
    """The name of a device that an engine takes for CUDA; torch reads what it is."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "cuda" if type(other) is str else self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("cuda")


def use_runners_of_cuda() -> None:
    """Let the workers that draft build the graph runners that they build on CUDA."""
    for name in WORKERS:
        module = found(f"sglang.srt.speculative.{name}")
        if module is None:
            continue
        for held in list(vars(module).values()):
            if isinstance(held, type) and held.__module__ == module.__name__:
                for method in CAPTURING:
                    if method in vars(held):
                        setattr(held, method, _as_on_cuda(getattr(held, method), module))


def _as_on_cuda(capture: Any, module: Any) -> Any:
    """Return a method that captures what its module captures on CUDA."""

    def captured(worker: Any, *arguments: Any, **named: Any) -> Any:
        target = getattr(worker, "target_worker", None)
        if target is None or target.device == "cuda":
            return capture(worker, *arguments, **named)
        # Where CUDA's branch would import compiled attention, that of MUSA does the same without.
        flag = "_is_musa" if hasattr(module, "_is_musa") else "_is_cuda"
        device, held = target.device, getattr(module, flag, False)
        target.device = AsCuda(device)
        setattr(module, flag, True)
        try:
            return capture(worker, *arguments, **named)
        finally:
            target.device = device
            setattr(module, flag, held)

    return captured
