"""The cause of a violation that shows only where steps overlap: the wait that would prevent it.

Each wait of the engine is made sure of in turn, by a class that comes before its own order of
work; the schedule is then played again. Knows no bug.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from paritybit.harness.explain.facts import Cause, Explanation, Situation
from paritybit.harness.explain.origins.source_lines import site_of, source_lines
from paritybit.reference.order import Arrived, Values
from paritybit.subjects.overlap import Flight, Overlap, Staged
from paritybit.subjects.streams import Event

Result = TypeVar("Result")


class CopiesAwaited(Overlap):
    """The host waits for the copies of a batch before it stages the next one."""

    def stage(self, values: Values) -> Staged:
        """Wait, then stage."""
        if self.copied is not None:
            self.copied.synchronise()
        return super().stage(values)


class ForwardAwaited(Overlap):
    """What the host writes to the tables waits for the forward in flight, always."""

    last: Event | None = None

    def write(self, values: Values, work: Callable[[Arrived], None]) -> None:
        """Wait, then write."""
        if self.last is not None:
            self.streams.schedule.wait(self.last)
        super().write(values, work)

    def launch(
        self,
        staged: Staged | None,
        forward: Callable[[Arrived], Result],
        follow: Callable[[Result], None],
        *,
        asks: bool,
    ) -> Flight[Result]:
        """Launch, and keep the event behind all of it."""
        flight = super().launch(staged, forward, follow, asks=asks)
        self.last = flight.done
        return flight


class TablesAwaited(Overlap):
    """A forward waits for all that was written to the tables."""

    def launch(
        self,
        staged: Staged | None,
        forward: Callable[[Arrived], Result],
        follow: Callable[[Result], None],
        *,
        asks: bool,
    ) -> Flight[Result]:
        """Wait, then launch."""
        if self.written is not None:
            self.streams.forward.wait(self.written)
        return super().launch(staged, forward, follow, asks=asks)


@dataclass(frozen=True)
class SureWait:
    """A wait, made sure of: the method that ought to wait, in words what for, and the class."""

    method: Callable[..., Any]
    words: str
    before: type[Overlap]

    @property
    def function(self) -> str:
        """What the method is called."""
        return self.method.__qualname__


WAITS = (
    SureWait(
        Overlap.stage,
        "the host writes to pinned buffers before the copies for the forward in flight have run",
        CopiesAwaited,
    ),
    SureWait(
        Overlap.write,
        "the tables are written before the forward in flight has read them",
        ForwardAwaited,
    ),
    SureWait(
        Overlap.launch,
        "the forward reads the tables before the data planned for it is written there",
        TablesAwaited,
    ),
)


def explain_race(property_id: str, step: int, mended: Mapping[str, bool]) -> Explanation:
    """Return why a property is violated at a step, though it holds where no steps overlap.

    `mended` says, by the function of each of `WAITS`, whether that wait alone makes it hold.
    """
    found = [wait for wait in WAITS if mended[wait.function]]
    if found:
        site = site_of(found[0].method, found[0].words)
        but = (
            "But with a wait added there, and nothing else changed, the schedule gives the "
            "correct bits."
        )
    else:
        site = site_of(Overlap, "work from two steps runs in the wrong order")
        but = "But no single wait fixes it. Without overlapping steps the bits are correct."
    proof = (
        f"The host plans step {step}, or the step after it, while a forward runs.",
        f"Then in {site.function} ({site.file}), {site.message}.",
        but,
        f"So {property_id} does not hold.",
    )
    cause = Cause("missing wait", site=site)
    lines = source_lines(None, cause)
    return Explanation(property_id, Situation(step, None), cause, proof, sources=lines)
