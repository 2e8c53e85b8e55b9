"""Operators that an engine's import wants to exist where what it has compiled is not here."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

KEPT: list[Any] = []
"""Libraries of operators, which end with their object."""


def define_operators(
    namespace: str, names: Iterable[str], signature: str, answer: Callable[..., Any] | None = None
) -> None:
    """Let operators of one signature exist that all give `answer`; without it none can be run."""
    operators = torch.library.Library(namespace, "FRAGMENT")
    for name in names:
        operators.define(f"{name}{signature}")
        if answer is not None:
            operators.impl(name, answer, "CompositeImplicitAutograd")
    KEPT.append(operators)
