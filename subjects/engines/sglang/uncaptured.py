"""The engine's runners as far as they go without a graph: their real populate.

They are built without being captured. What they hand to the captured function is the
engine's own; that function never runs here.
"""

from typing import Any

from subjects.engines.sglang.runner import SglangRunner, uncompiled

UNCAPTURED = ("capture", "warmup", "warmup_compile", "_warmup", "_capture_all")
"""Methods that capture or warm up, where a runner has them."""

UNCOMPILED = {
    "patch_model": uncompiled,
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


def _nothing(runner: Any, *arguments: Any, **named: Any) -> None:
    """Capture nothing."""
