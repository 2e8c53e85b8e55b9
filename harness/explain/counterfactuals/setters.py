"""The line that set an attribute of a Python object last, in a schedule played once more."""

from typing import Any

from paritybit.harness.explain.counterfactuals.objects import NOT_THERE, Attribute
from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.tracing import LastChange
from torch import Tensor

SHOWN = 16
"""Values of a tensor that tell it from one that was written since."""


def set_at(recorded: RecordedForward, attribute: Attribute) -> tuple[SourceLine, ...]:
    """Return the line that sets an attribute in a forward, and those that called it.

    The forward is run again with the attribute as it was when the schedule began. Where that does
    not set it, there is no line.
    """
    watched = LastChange(lambda _: identity(attribute), "set")
    recorded.again(attributes=[attribute], seen=watched)
    return watched.lines


def identity(attribute: Attribute) -> tuple[Any, ...]:
    """Return what is another once an attribute is set, or what it holds changes."""
    value = getattr(attribute.holder, attribute.key, NOT_THERE)
    if isinstance(value, Tensor):
        return id(value), *value.flatten()[:SHOWN].tolist()
    if isinstance(value, dict):
        return id(value), len(value), *map(id, value.values())
    if isinstance(value, list | tuple | set):
        return id(value), len(value), *map(id, value)
    return (id(value),)
