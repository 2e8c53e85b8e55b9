"""Speculation on a CPU: the graph runners for CUDA, and kernels for trees of drafts in Python."""

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
"""The modules of draft workers, by release."""

CAPTURING = ("init_cuda_graphs", "_capture_cuda_graphs")
"""The methods of draft workers that choose a graph runner by the kind of device."""

TREES = ("sglang.srt.speculative.eagle_utils", "sglang.kernels.ops.speculative.spec_tree")
"""Modules that build and verify trees with compiled kernels, by release."""

VERIFIER = "verify_tree_greedy_func"
"""The function that calls the kernel that verifies trees."""

KERNELS_OF_CUDA = (
    "sglang.srt.speculative.eagle_info_v2",
    "sglang.srt.speculative.triton_ops.cache_locs",
    "sglang.kernels.ops.speculative.cache_locs",
)
"""Modules that launch Triton kernels only on CUDA. Each has its own flag for this."""

BUILDER = "sgl_build_tree_kernel_efficient"
"""The name of the kernel that builds trees, which is imported only on CUDA."""


def stand_in_for_trees() -> None:
    """Build and verify trees in Python, and look up slots with the engine's Triton kernel."""
    for place in TREES:
        module = found(place)
        if module is not None:
            if hasattr(module, VERIFIER):
                replace_everywhere(getattr(module, VERIFIER), trees.verify_tree_greedy)
            setattr(module, BUILDER, trees.build_tree)
    for place in KERNELS_OF_CUDA:
        module = found(place)
        if hasattr(module, "_is_cuda"):
            module._is_cuda = True


RULES = "sglang.srt.arg_groups.speculative_hook"
"""The module that completes the settings of speculation."""

NO_OVERLAP = "_disable_overlap_schedule_for_cpu"
"""The function of this module that disables overlap scheduling on a CPU."""


def overlap_as_on_cuda() -> str | None:
    """Allow overlap scheduling with drafts on a CPU, if the release disables it."""
    module = found(RULES)
    if module is None or not hasattr(module, NO_OVERLAP):
        return ""
    setattr(module, NO_OVERLAP, lambda server_args: None)
    return None


class AsCuda(str):
    """The name of a device. It is equal to "cuda" for the engine, but torch reads the real name."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "cuda" if type(other) is str else self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("cuda")


def use_runners_of_cuda() -> None:
    """Make draft workers build the graph runners that they build on CUDA."""
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
    """Return a method that captures graphs as on CUDA."""

    def captured(worker: Any, *arguments: Any, **named: Any) -> Any:
        target = getattr(worker, "target_worker", None)
        if target is None or target.device == "cuda":
            return capture(worker, *arguments, **named)
        # The branch for MUSA does the same as that for CUDA, without compiled attention.
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
