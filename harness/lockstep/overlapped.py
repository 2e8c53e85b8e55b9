"""The graph world's scheduler where steps overlap: it plans on while a forward is in flight.

The device work of its decisions runs in the engine's own order, see `subjects/overlap.py`.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paritybit.harness.lockstep.requests import PlannedForward, Request
from paritybit.harness.lockstep.scheduler import COMMITS, Scheduler, count_sampled, keep_sampled
from paritybit.harness.lockstep.speculation import count_caught_up, keep_caught_up
from paritybit.harness.lockstep.tracebacks import subject_runs
from paritybit.harness.schedules.coverage import FREED_IN_FLIGHT, HANDED_OVER_IN_FLIGHT, OVERLAPPED
from paritybit.harness.schedules.schedule import Evict, Finish, Retract, Step, Verify
from paritybit.reference.allocator import Ownership
from paritybit.reference.batch import (
    SLOT_VALUES,
    ForwardBatch,
    Mode,
    Span,
    batch_of,
    batch_values,
    write_slots,
)
from paritybit.reference.model import Output
from paritybit.reference.order import Arrived, Values
from paritybit.subjects.overlap import Overlap, Staged
from paritybit.subjects.protocol import Forward
from torch import Tensor

TURN, FORWARDS_LAG = 8, 6
"""In the first FORWARDS_LAG of every TURN forwards the forwards' stream lags.

In the others, two in a row, the schedule's stream does: a table that is written too late shows in
the next forward only if that one does not lag either.
"""


@dataclass(frozen=True)
class RanForward:
    """What the subject's forward gave and found: the mapping right before it, and its batch."""

    forward: Forward
    mapping: Tensor
    batch: ForwardBatch | None

    @property
    def output(self) -> Output:
        """The output of live rows."""
        return self.forward.output


Keep = Callable[[ForwardBatch, Output], None]
"""Keeps on the device what a forward of a batch gave."""

READ_BY_HOST = frozenset(COMMITS) - {Mode.DRAFT_EXTEND}
"""Modes whose outcome the host must read before it goes on: it decides which slots are free."""

StepOver = Callable[[], Ownership]
"""Returns who held what when a step was over, once the device got there."""


@dataclass(frozen=True)
class StagedForward(PlannedForward):
    """A forward planned ahead of the device: what it runs, and its values as the host staged them.

    Its batch is there once it was made on the device.
    """

    listed: tuple[Span, ...]
    staged: Staged

    @property
    def spans(self) -> tuple[Span, ...]:
        """What the forward runs."""
        return self.listed


def watched(overlap: Overlap) -> Overlap:
    """Return an order of work in which what is written to the tables fails as the subject's.

    What it writes may be another batch's by then, and out of bounds.
    """
    write = type(overlap).write

    def guarded(values: Values, work: Callable[[Arrived], None]) -> None:
        write(overlap, values, subject_runs()(work))

    overlap.write = guarded  # type: ignore[method-assign]
    return overlap


class OverlappedScheduler(Scheduler):
    """A scheduler whose device work is ordered by `overlap`.

    Arguments are `Scheduler`'s. A step that `plan` is asked for may have been planned ahead.
    """

    def __init__(self, *args: Any, overlap: Overlap) -> None:
        self.overlap = watched(overlap)
        self.kept_in_flight: dict[int, int] = {}
        self.ahead: deque[tuple[Step, PlannedForward | None, StepOver]] = deque()
        super().__init__(*args, order=overlap)

    def order_by(self, overlap: Overlap) -> None:
        """Order the device work by `overlap` from the next reset on."""
        self.overlap.clear()
        self.overlap = self.order = self.allocator.order = watched(overlap)

    def rehearse(self, play: Callable[[], object]) -> None:
        """Play what is to be played beforehand, if the streams of the device need it.

        What it finds does not count, and what goes wrong in it goes wrong again.
        """
        with self.overlap.streams.rehearsal() as needed:
            if needed:
                with suppress(Exception):
                    play()

    def reset(self, seed: int) -> None:
        """Start again with nothing in flight and nothing planned."""
        self.overlap.clear()
        self.ahead.clear()
        self.kept_in_flight.clear()
        super().reset(seed)
        self.observed = self.tokens.clone()
        self.over = self._over()

    @property
    def observed_tokens(self) -> Tensor:
        """All tokens as the last step that was run left them: what is planned may write more."""
        return self.observed

    def ownership(self) -> Ownership:
        """Return who held what when the last step that was run was over."""
        return self.over()

    def plan(self, step: Step) -> PlannedForward | None:
        """Return the plan of a step, made now or ahead.

        Raises RuntimeError if another step was planned ahead in its place.
        """
        if not self.ahead:
            self._plan(step)
        planned, forward, self.over = self.ahead.popleft()
        if planned != step:
            raise RuntimeError(f"the planned step is {planned}, but the played step is {step}")
        return forward

    def plan_ahead(self, steps: Iterable[Step]) -> bool:
        """Plan the steps up to the next forward; return whether there was one to plan.

        A verify is not planned ahead: the root of its tree is a token that the host must read.
        """
        for step in steps:
            if isinstance(step, Verify):
                break
            self.events[FREED_IN_FLIGHT] += isinstance(step, Finish | Retract | Evict)
            if self._plan(step) is not None:
                break
        return bool(self.ahead)

    def _add(
        self, asked: int, chunk: int, donor: Request | None = None, shared: int = 0
    ) -> Request | None:
        """Admit a request; count it if its tokens reach beyond where a forward's is yet to be kept.

        That is, in its token row, which the forward in flight still knows as another request's.
        """
        request = super()._add(asked, chunk, donor, shared)
        if request is not None:
            kept = self.kept_in_flight.get(request.token_row, request.known)
            self.events[HANDED_OVER_IN_FLIGHT] += kept < request.known
        return request

    def _plan(self, step: Step) -> PlannedForward | None:
        """Plan a step, and keep the plan for when it is played."""
        forward = super().plan(step)
        self.ahead.append((step, forward, self._over()))
        return forward

    def _over(self) -> StepOver:
        """Keep who holds what now; the tables are read when the device gets here."""
        held, found = super().ownership(), list[tuple[Tensor, Tensor]]()
        tables, schedule = self.pools.tables, self.overlap.streams.schedule
        schedule.run(
            lambda: found.append(
                (tables.full_to_swa_index_mapping.clone(), tables.req_to_token.clone())
            ),
            reads=True,
        )
        event = schedule.record()

        def over() -> Ownership:
            event.synchronise()
            mapping, req_to_token = found[0]
            return replace(held, mapping=mapping, req_to_token=req_to_token, tokens=self.observed)

        return over

    def forward_of(self, mode: Mode, spans: Iterable[Span]) -> PlannedForward:
        """Return the forward over some spans, staged; their slots go to the tables in order."""
        found = tuple(spans)
        values = batch_values(mode, found, self.config.max_context)
        slots = {name: values[name] for name in SLOT_VALUES}
        self.overlap.write(slots, partial(write_slots, self.pools.tables))
        return StagedForward(mode, None, found, self.overlap.stage(values))

    def begin(self, forward: int) -> bool:
        """Choose the stream that lags while forward number `forward` runs.

        Returns whether it is the forwards' stream. Only then may extra runs of the step come
        first: the schedule's stream does not lag, so that all they read is written already.
        """
        forwards_lag = forward % TURN < FORWARDS_LAG
        self.overlap.streams.follow_host()
        self.overlap.streams.lag(forward=forwards_lag)
        return forwards_lag

    def filled(self, work: PlannedForward) -> PlannedForward:
        """Return a planned forward with its batch, made once all tables are written."""
        if not isinstance(work, StagedForward):
            return work
        if self.overlap.written is not None:
            self.overlap.written.synchronise()
        return replace(work, batch=self._batch(work, self.overlap.arrive(work.staged.host)))

    def run(
        self,
        work: PlannedForward,
        forward: Callable[[ForwardBatch | None, ForwardBatch | None], RanForward],
        upcoming: Iterable[Step],
    ) -> RanForward:
        """Run a planned forward, and meanwhile plan the next one; return what it gave.

        `forward` gets the batch that arrived on the device, and the one that was staged. Nothing
        is planned ahead of a forward that the host must read before it goes on.
        """
        staged = work if isinstance(work, StagedForward) else None
        batches: list[ForwardBatch | None] = [None]

        def run(arrived: Arrived) -> RanForward:
            if staged is None:
                return forward(None, None)
            batches[0] = self._batch(staged, arrived)
            right = self._batch(staged, self.overlap.arrive(staged.staged.host))
            return forward(batches[0], right)

        keep = self._followed(staged) if staged is not None else None

        def follow(ran: RanForward) -> None:
            if keep is not None and batches[0] is not None:
                keep(batches[0], ran.output)
            self.observed = self.tokens.clone()

        self.overlap.streams.follow_host()
        over = self._over()
        flight = self.overlap.launch(
            staged.staged if staged else None, run, follow, asks=work.mode is not Mode.DECODE
        )
        if keep is not None or staged is None:
            self.kept_in_flight = {span.token_row: span.end for span in work.spans}
            planned = self.plan_ahead(upcoming)
            self.kept_in_flight.clear()
            self.events[OVERLAPPED] += planned and not flight.done.done
        self.over = over
        return flight.result

    def _followed(self, work: StagedForward) -> Keep | None:
        """Follow on the host what a forward will give; return what is left for the device.

        None if the host must read what it gives.
        """
        if work.mode in READ_BY_HOST:
            return None
        if work.mode is Mode.DRAFT_EXTEND:
            states = count_caught_up(self, work.spans)
            return lambda _, output: keep_caught_up(states, output)
        rows = count_sampled(self, work.mode, work.spans)
        return lambda batch, output: keep_sampled(self, batch, output, rows)

    def commit(self, batch: ForwardBatch, output: Output) -> list[int]:
        """Follow a forward as `Scheduler` does, unless that was done while it was in flight."""
        if batch.mode not in READ_BY_HOST:
            return list(range(batch.live_requests))
        said = super().commit(batch, output)
        self.observed = self.tokens.clone()
        self.over = self._over()
        return said

    def _batch(self, work: StagedForward, arrived: Arrived) -> ForwardBatch:
        host = work.staged.host
        return batch_of(work.mode, work.listed, host, arrived, self.tokens, self.hidden_states)
