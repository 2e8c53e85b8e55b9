"""The cause of a violation that occurs only if steps overlap: the missing wait or copy.

Each wait and each copy of the engine is ensured in turn, by a class that precedes the engine's own
order of work. The schedule is then played again. No knowledge of any bug is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from paritybit.harness.explain.facts import Cause, Explanation, Situation
from paritybit.harness.explain.origins.source_lines import site_of, source_lines
from paritybit.reference.order import Arrived, Values
from paritybit.subjects.overlap import Flight, Launch, Overlap, Staged, on_host
from paritybit.subjects.streams import Event
from torch import Tensor

Result = TypeVar("Result")


class CopiesAwaited(Overlap):
    """The host waits for the copies of a batch before it stages the next one."""

    def stage(self, values: Values) -> Staged:
        """Wait, then stage."""
        if self.copied is not None:
            self.copied.synchronise()
        return super().stage(values)


class EventBehindCopies(Overlap):
    """The event after the copies of a batch is recorded after them."""

    def launch(self, staged: Staged | None, given: Launch[Result]) -> Flight[Result]:
        """Launch, and record an event after the first queued work, which are the copies."""
        stream, behind = self.streams.forward, list[Event]()
        run = stream.run

        def recording(work: Callable[[], None], **named: bool) -> None:
            run(work, **named)
            behind.append(stream.record())

        stream.run = recording  # type: ignore[method-assign]
        try:
            flight = super().launch(staged, given)
        finally:
            stream.run = run  # type: ignore[method-assign]
        if staged is not None:
            self.copied = behind[0]
        return flight


class ForwardAwaited(Overlap):
    """Writes of the host to the tables always wait for the forward in flight."""

    last: Event | None = None

    def write(self, values: Values, work: Callable[[Arrived], None]) -> None:
        """Wait, then write."""
        if self.last is not None:
            self.streams.schedule.wait(self.last)
        super().write(values, work)

    def launch(self, staged: Staged | None, given: Launch[Result]) -> Flight[Result]:
        """Launch, and keep the event after all of it."""
        flight = super().launch(staged, given)
        self.last = flight.done
        return flight


class EventBehindForward(Overlap):
    """The event after a forward in flight is recorded after the work that follows it."""

    def finish(self, follow: Callable[[], None]) -> None:
        """Run the work that follows, then record."""
        super().finish(follow)
        self.in_flight = self.streams.forward.record()


class EventBehindWrites(Overlap):
    """The event after writes to the tables is recorded after them."""

    def write(self, values: Values, work: Callable[[Arrived], None]) -> None:
        """Write, then record."""
        super().write(values, work)
        self.written = self.streams.schedule.record()


class HostMemoryKept(Overlap):
    """Host memory for copies is never rewritten."""

    def _once(self, listed: Sequence[int]) -> Tensor:
        """Allocate separate memory."""
        return self._pinned(on_host(listed))


class TableValuesKept(Overlap):
    """Values for the tables are in host memory that nothing else uses meanwhile."""

    writing = False

    def write(self, values: Values, work: Callable[[Arrived], None]) -> None:
        """Write from separate memory."""
        self.writing = True
        try:
            super().write(values, work)
        finally:
            self.writing = False

    def fill(self, name: str, listed: Sequence[int]) -> Tensor:
        """Use separate memory for the tables, and the buffer of the name otherwise."""
        return self._pinned(on_host(listed)) if self.writing else super().fill(name, listed)


class TablesAwaited(Overlap):
    """A forward waits for all writes to the tables."""

    def launch(self, staged: Staged | None, given: Launch[Result]) -> Flight[Result]:
        """Wait, then launch."""
        self.streams.forward.wait(self.streams.schedule.record())
        return super().launch(staged, given)


class ArrivalsCopied(Overlap):
    """Values that arrive on the device are in separate memory."""

    def arrive(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy the values that arrive."""
        return {name: tensor.clone() for name, tensor in super().arrive(values).items()}


@dataclass(frozen=True)
class SureWait:
    """A wait or a copy that a class ensures, and the method that lacks it.

    `words` describe what happens without it, and `missing` is what the class adds. Recording an
    event precedes the waits for it, because they are useless if it is recorded too early.
    """

    method: Callable[..., Any]
    words: str
    before: type[Overlap]
    missing: str = "wait"


WAITS = (
    SureWait(
        Overlap.stage,
        "the host writes to pinned buffers before the copies for the forward in flight have run",
        CopiesAwaited,
    ),
    SureWait(
        Overlap.launch,
        "the event behind the copies of a batch is recorded before they have run",
        EventBehindCopies,
    ),
    SureWait(
        Overlap.finish,
        "the event behind the forward in flight is recorded before what follows it has run",
        EventBehindForward,
    ),
    SureWait(
        Overlap.write,
        "the tables are written before the forward in flight has read them",
        ForwardAwaited,
    ),
    SureWait(
        Overlap.write,
        "the event behind what is written to the tables is recorded before all of it is",
        EventBehindWrites,
    ),
    SureWait(
        Overlap.launch,
        "the forward reads the tables before the data planned for it is written there",
        TablesAwaited,
    ),
    SureWait(
        Overlap._once,
        "host memory that a copy has yet to read is written again",
        HostMemoryKept,
    ),
    SureWait(
        Overlap.write,
        "what is written to the tables shares host memory with what is staged",
        TableValuesKept,
        "copy",
    ),
    SureWait(
        Overlap.arrive,
        "the forward reads host memory in which the next batch is staged meanwhile",
        ArrivalsCopied,
        "copy",
    ),
)


def explain_race(property_id: str, step: int, wait: SureWait) -> Explanation:
    """Return why a property is violated at a step, though it holds with one more wait."""
    site = site_of(wait.method, wait.words)
    but = f"But with that put right, and nothing else changed, {property_id} holds."
    proof = (
        f"The host plans step {step}, or the step after it, while a forward runs.",
        f"Then in {site.function} ({site.file}), {site.message}.",
        but,
        f"So {property_id} does not hold.",
    )
    cause = Cause(f"missing {wait.missing}", site=site)
    lines = source_lines(None, cause)
    return Explanation(property_id, Situation(step, None), cause, proof, sources=lines)
