"""A lockstep that plays for ever, for tests of what becomes of the process it plays in."""

import time
from collections.abc import Collection
from typing import Any

from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.config import TrialConfig

from properties.support.harness.executor_tasks import FOR_EVER, say


class Hanging:
    """Stands for a lockstep, which captures nothing; says when it plays, and goes on."""

    def capture(self, *_: Any) -> None:
        """Capture nothing."""

    def play(self, *_: Any, **__: Any) -> None:
        """Play for ever."""
        say("playing")
        time.sleep(FOR_EVER)


def build(_: TrialConfig, __: Collection[str]) -> Lockstep:
    """Return one, as a fresh process builds its lockstep."""
    return Hanging()  # type: ignore[return-value]
