"""The scheduler of the graph run with overlapping steps: it plans while a forward is in flight.

The device work of its decisions runs in the engine's own order: see `subjects/overlap.py`.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from paritybit.harness.lockstep.requests import PlannedForward
from paritybit.harness.lockstep.scheduler import (
    COMMITS,
    LockstepScheduler,
    count_sampled,
    keep_sampled,
)
from paritybit.harness.lockstep.speculation import count_caught_up, keep_caught_up
from paritybit.harness.lockstep.tracebacks import SubjectRuns
from paritybit.harness.schedules.schedule import Step, Verify
from paritybit.reference.allocator import Ownership
from paritybit.reference.batch import (
    SLOT_VALUES,
    ForwardBatch,
    Mode,
    RequestSpan,
    batch_of,
    batch_values,
)
from paritybit.reference.model import Output
from paritybit.reference.order import Arrived, HostValues
from paritybit.subjects.overlap import Overlap, Staged, arrived
from paritybit.subjects.protocol import ForwardResult
from torch import Tensor

from paritybit.compat import override

TURN, FORWARDS_LAG = 8, 6
"""The forward stream lags in the first FORWARDS_LAG of every TURN forwards.

In the other two the schedule stream lags. There are two in a row, because a table that is written
too late shows in the next forward only if the forward stream does not lag there either.
"""


@dataclass(frozen=True)
class RanForward:
    """A forward of the subject, the full-to-SWA mapping right before it, and its batch."""

    forward: ForwardResult
    mapping: Tensor
    batch: ForwardBatch | None


Keep = Callable[[ForwardBatch, Output], None]
"""Stores on the device the results of a forward of a batch."""

READ_BY_HOST = frozenset(COMMITS) - {Mode.DRAFT_EXTEND}
"""Modes whose outcome the host must read before it continues, because it decides what is free."""

StepOver = Callable[[], Ownership]
"""Returns the owners after a step. Waits until the device has finished the step."""


@dataclass(frozen=True)
class StagedForward(PlannedForward):
    """A forward planned ahead of the device, with the values that the host staged for it.

    `batch` is None until the batch was made on the device.
    """

    staged: Staged = field(kw_only=True)


def guard(overlap: Overlap) -> Overlap:
    """Return `overlap`, changed so that an error in a table write counts as the subject's.

    Staged values may have been overwritten by another batch and be out of bounds.
    """
    write = type(overlap).write

    def guarded(values: HostValues, work: Callable[[Arrived], None]) -> None:
        write(overlap, values, SubjectRuns()(work))

    overlap.write = guarded  # type: ignore[method-assign]
    return overlap


class OverlappedScheduler(LockstepScheduler):
    """A scheduler whose device work is ordered by `overlap`.

    Other arguments are as in its base class. `plan` returns the plan made ahead, if there is one.
    `planned_ahead` counts the times that one was made while a forward was in flight. `observed` are
    all tokens after the last step that was run. Planned steps may write more.
    """

    def __init__(self, *args: Any, overlap: Overlap) -> None:
        self.overlap = guard(overlap)
        self.ahead: deque[tuple[Step, PlannedForward | None, StepOver]] = deque()
        super().__init__(*args, order=overlap)

    @override
    def reset(self, seed: int) -> None:
        self.overlap.clear()
        self.ahead.clear()
        self.planned_ahead = 0
        super().reset(seed)
        self.observed = self.tokens.clone()
        self.over = self._over()

    @override
    def ownership(self) -> Ownership:
        return self.over()

    def plan(self, step: Step) -> PlannedForward | None:
        """Return the plan of a step, made now or ahead.

        Raises RuntimeError if a different step was planned ahead.
        """
        if not self.ahead:
            self._plan(step)
        planned, forward, self.over = self.ahead.popleft()
        if planned != step:
            raise RuntimeError(f"the planned step is {planned}, but the played step is {step}")
        return forward

    def plan_ahead(self, steps: Iterable[Step]) -> bool:
        """Plan the steps up to the next forward. Returns whether one was planned.

        A verify is not planned ahead, because the host must read each request's last token.
        """
        for step in steps:
            if isinstance(step, Verify):
                break
            if self._plan(step) is not None:
                break
        return bool(self.ahead)

    def _plan(self, step: Step) -> PlannedForward | None:
        """Plan a step, and keep the plan until the step is played."""
        forward = super().plan(step)
        self.ahead.append((step, forward, self._over()))
        return forward

    def _over(self) -> StepOver:
        """Record the owners now. The tables are read when the device reaches this point."""
        owners, found = super().ownership(), list[tuple[Tensor, Tensor]]()
        tables, schedule = self.pools.tables, self.overlap.streams.schedule
        schedule.run(
            lambda: found.append(
                (tables.full_to_swa_index_mapping.clone(), tables.req_to_token.clone())
            )
        )
        event = schedule.record()

        def over() -> Ownership:
            event.synchronise()
            mapping, req_to_token = found[0]
            return replace(owners, mapping=mapping, req_to_token=req_to_token, tokens=self.observed)

        return over

    def forward_of(self, mode: Mode, spans: Iterable[RequestSpan]) -> PlannedForward:
        """Return the staged forward over some spans. Their slots go to the tables in order."""
        found = tuple(spans)
        values = batch_values(mode, found, self.config.max_context)
        slots = {name: values[name] for name in SLOT_VALUES}
        self.overlap.write(slots, self.pools.tables.write)
        return StagedForward(mode, spans=found, staged=self.overlap.stage(values))

    def begin(self, forward: int) -> bool:
        """Choose the stream that lags while forward number `forward` runs.

        Returns whether it is the forward stream. Extra runs of the step are possible only then:
        the schedule stream does not lag, so everything that they read has been written.
        """
        forwards_lag = forward % TURN < FORWARDS_LAG
        self.overlap.streams.lag(forward=forwards_lag)
        return forwards_lag

    @override
    def complete_batch(self, work: PlannedForward) -> ForwardBatch | None:
        if not isinstance(work, StagedForward):
            return work.batch
        if self.overlap.written is not None:
            self.overlap.written.synchronise()
        return self._batch(work, arrived(work.staged.host))

    def run(
        self,
        work: PlannedForward,
        forward: Callable[[ForwardBatch | None, ForwardBatch | None], RanForward],
        upcoming: Iterable[Step],
    ) -> RanForward:
        """Run a planned forward, plan the next one meanwhile, and return the result of the forward.

        `forward` gets the batch as it arrived on the device, and the batch as it was staged. If
        the host must read the result before it continues, nothing is planned meanwhile.
        """
        staged = work if isinstance(work, StagedForward) else None
        batches: list[ForwardBatch | None] = [None]

        def run(values: Arrived) -> RanForward:
            if staged is None:
                return forward(None, None)
            batches[0] = self._batch(staged, values)
            right = self._batch(staged, arrived(staged.staged.host))
            return forward(batches[0], right)

        keep = self._follow(staged) if staged is not None else None

        def follow(ran: RanForward) -> None:
            if keep is not None and batches[0] is not None:
                keep(batches[0], ran.forward.output)
            self.observed = self.tokens.clone()

        over = self._over()
        flight = self.overlap.launch(staged.staged if staged else None, run, follow)
        if keep is not None or staged is None:
            planned = self.plan_ahead(upcoming)
            self.planned_ahead += planned and not flight.done.done
        self.over = over
        return flight.result

    def _follow(self, work: StagedForward) -> Keep | None:
        """Update the host's state in advance, and return the device's part. None if it cannot."""
        if work.mode in READ_BY_HOST:
            return None
        if work.mode is Mode.DRAFT_EXTEND:
            states = count_caught_up(self, work.spans)
            return lambda _, output: keep_caught_up(states, output)
        rows = count_sampled(self, work.spans)
        return lambda batch, output: keep_sampled(self, batch, output, rows)

    def commit(self, batch: ForwardBatch, output: Output) -> list[int]:
        """Commit a forward as its base class does, unless that was done while it was in flight."""
        if batch.mode not in READ_BY_HOST:
            return list(range(batch.live_requests))
        rows = super().commit(batch, output)
        self.observed = self.tokens.clone()
        self.over = self._over()
        return rows

    def _batch(self, work: StagedForward, values: Arrived) -> ForwardBatch:
        host = work.staged.host
        return batch_of(work.mode, work.spans, host, values, self.tokens, self.hidden_states)
