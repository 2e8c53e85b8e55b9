"""How the cause of a violation is found, as the file of a property names it."""

from collections.abc import Callable
from typing import Any

from harness.explain.recorded import RecordedForward

Finder = Callable[[RecordedForward], Any]
