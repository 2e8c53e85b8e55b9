"""Runs tasks in this process, and in new processes once a task has spoiled this one."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from paritybit.harness.campaigns.fresh import in_new_process


class Reported(Protocol):
    """The result of a task. If `spoiled`, its process must not run another task."""

    @property
    def spoiled(self) -> bool:
        """Whether the process is no longer usable because of a lost device or an error."""
        ...


T = TypeVar("T")
R = TypeVar("R", bound=Reported)


class InTurn(Generic[T, R]):
    """Runs tasks one after another with `run`, a module-level function."""

    def __init__(self, run: Callable[[T], R]) -> None:
        self.run = run
        self.spoiled = False

    def __call__(self, task: T) -> R:
        """Return the result of a task. Raises its error, or BrokenProcessPool if a process dies."""
        if self.spoiled:
            return in_new_process(self.run, task)
        self.spoiled = True
        result = self.run(task)
        self.spoiled = result.spoiled
        return result
