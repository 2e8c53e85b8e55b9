"""The functions of the engine that each method of `Lmdeploy` wraps: at least one each."""

from paritybit.connectors.lmdeploy.engine import Lmdeploy

AGENT = "engine.model_agent.agent.BaseModelAgent"
GRAPHS = "backends.cuda.graph_runner"
RUNNER = f"{GRAPHS}.full_graph.CUDASingleGraphRunner"
BLOCKS = "paging.block_manager.base_block_manager.PhysicalAllocator"
CACHE = "engine.cache_engine.engine.CacheEngine"

PATHS = {
    "made": (f"{AGENT}.build_cache_engine",),
    "send": ("engine.inputs_maker.InputsMakerAsync._make_forward_inputs",),
    "forward": (f"{AGENT}._forward_impl",),
    "eager": (f"{GRAPHS}.runner.CUDAGraphRunner._forward_eager",),
    "bound": (f"{RUNNER}._bind_inputs",),
    "capture": (f"{RUNNER}.capture",),
    "sample": (f"{AGENT}.async_sampling_logits",),
    "allocate": (f"{BLOCKS}.allocate",),
    "free": (f"{BLOCKS}.free",),
    "fill": (f"{CACHE}.copy_logical_blocks", f"{CACHE}.swap_in", f"{CACHE}.migrate"),
    "idle": ("engine.engine_loop.RunableEventAsync.set",),
    "loop_of": ("engine.engine_loop.EngineLoop.main_loop", f"{AGENT}._async_loop_background"),
}
TARGETS = {
    "replay": ("torch.cuda.CUDAGraph.replay",),
    **{name: tuple(f"lmdeploy.pytorch.{path}" for path in paths) for name, paths in PATHS.items()},
}


def install() -> None:
    """Wrap each target that this release has."""
    Lmdeploy.connect(TARGETS)
