"""The engine's prefill runners, as far as they go without a compiler: their real populate.

They are built without being captured. What they hand to the captured function is the
engine's own; that function never runs here.
"""

from typing import Any

from subjects.engines.sglang.runner import SglangRunner, uncompiled

UNCAPTURED = ("capture", "warmup", "warmup_compile", "_warmup", "_capture_all")
"""Methods that capture or warm up, where a runner has them."""

UNCOMPILED = {
    "patch_model": uncompiled,
    "install_torch_compiled": lambda *arguments, **named: None,
    "resolve_prefill_backend": lambda runner: None,
    "resolve_decode_backend": lambda runner: None,
}
"""What compiles or captures in a runner's module, where it has it."""


class UncapturedRunner(SglangRunner):
    """A runner that is built and not captured."""

    def runner_type(self) -> Any:
        """Return the engine's class without what captures."""
        found = super().runner_type()
        module = self.host.engine.module(found.__module__.partition(".")[2])
        for name, value in UNCOMPILED.items():
            if hasattr(module, name):
                setattr(module, name, value)
        idle = {name: _nothing for name in UNCAPTURED if hasattr(found, name)}
        return type(found.__name__, (found,), idle)


class PrefillRunner(UncapturedRunner):
    """A prefill runner."""

    def populate(self, batch: Any) -> Any:
        """Return the batch of static buffers that the captured function would be given.

        Some engines return more beside it.
        """
        fill = getattr(self.runner, "replay_prepare", None) or self.runner.load_batch
        with self.context():
            filled = fill(batch)
        parts = filled if isinstance(filled, tuple) else (filled,)
        return next(part for part in parts if hasattr(part, "out_cache_loc"))


def _nothing(runner: Any, *arguments: Any, **named: Any) -> None:
    """Capture nothing."""


class PiecewiseRunner(PrefillRunner):
    """The runner of prefill by pieces between attentions."""

    name = "piecewise"
    places = (
        "srt.model_executor.piecewise_cuda_graph_runner:PiecewiseCudaGraphRunner",
        "srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner",
    )


class BreakableRunner(PrefillRunner):
    """The runner of prefill by segments broken at attention."""

    name = "breakable"
    places = (
        "srt.model_executor.breakable_cuda_graph_runner:BreakableCudaGraphRunner",
        "srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner",
    )
