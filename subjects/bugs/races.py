"""Missing or early waits where the host runs ahead of a forward in flight.

Each bug shows only if steps overlap.
"""

from collections.abc import Callable
from typing import TypeVar

from paritybit.reference.batch import Mode
from paritybit.reference.order import Arrived, Values
from paritybit.subjects.bugs.bug import THREAD, Bug
from paritybit.subjects.bugs.expected import DECODE, PREFILL, seen
from paritybit.subjects.overlap import Flight, Overlap, Staged
from paritybit.subjects.parts import Part
from paritybit.subjects.toggles import LocationScheme

FAMILY = "order of device work"

ONE_RUNNER_PER_ENGINE = frozenset({Mode.DECODE, Mode.EXTEND})
"""The engine owns the streams, so one runner per engine reveals a bug in them."""

Result = TypeVar("Result")


class Unfenced(Overlap):
    """Frees without waiting for the forward in flight."""

    def freeing(self) -> None:
        """Wait for nothing."""

    def evicting(self) -> None:
        """Wait for nothing."""


class BarrierBeforeLaunch(Unfenced):
    """Waits for the forward in flight before the next launch instead of after it."""

    def launch(
        self,
        staged: Staged | None,
        forward: Callable[[Arrived], Result],
        follow: Callable[[Result], None],
    ) -> Flight[Result]:
        """Wait once for the previous forward, for everything freed until the next launch."""
        self.wait_for_forward()
        return super().launch(staged, forward, follow)


class FreedAtOnce(Overlap):
    """Rewrites rows and slots of a finished request without waiting."""

    def freeing(self) -> None:
        """Wait for nothing."""


class EvictedAtOnce(Overlap):
    """Unmaps slots that left the next query's window without waiting."""

    def evicting(self) -> None:
        """Wait for nothing."""


class StagedTooSoon(Overlap):
    """Writes some pinned buffers before the wait for their copies."""

    names: tuple[str, ...]

    def stage(self, values: Values) -> Staged:
        """Fill some of the buffers early."""
        for name in self.names:
            self.fill(name, values[name])
        return super().stage(values)


class SlotsStagedTooSoon(StagedTooSoon):
    """Overwrites this batch's slots by the next batch's."""

    names = ("full_slot",)


BUGS = (
    Bug(
        name="barrier_before_launch",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(31687) + ", after " + THREAD.format(29353),
        mechanism=(
            "The schedule stream waits for the forwards at the top of the loop instead of "
            "right after a launch. Slots that the host frees in the same turn are "
            "unmapped while the forward just launched builds its page table, so that "
            "table points at slot 0."
        ),
        expected=seen("logits_parity", DECODE, PREFILL),
        parts={Part.OVERLAP: BarrierBeforeLaunch},
        modes=ONE_RUNNER_PER_ENGINE,
        overlap=True,
        also_in=(LocationScheme.PER_LAYER, LocationScheme.PRESET),
    ),
    Bug(
        name="freed_row_rewritten",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(18803),
        mechanism=(
            "The free is not deferred. The row and slots of a finished request are "
            "reused, unmapped and rewritten while a forward in flight still reads them."
        ),
        expected=seen("logits_parity", DECODE, PREFILL),
        parts={Part.OVERLAP: FreedAtOnce},
        modes=ONE_RUNNER_PER_ENGINE,
        overlap=True,
        also_in=(LocationScheme.MEMO, LocationScheme.PER_LAYER),
    ),
    Bug(
        name="evicted_in_flight",
        family=FAMILY,
        scheme=LocationScheme.PER_LAYER,
        thread="https://github.com/sgl-project/sglang/issues/17839, fixed by "
        + THREAD.format(21754),
        mechanism=(
            "SWA slots outside the next query's window are unmapped while the forward in "
            "flight still looks them up. Its window begins one token earlier."
        ),
        expected=seen("logits_parity", DECODE),
        parts={Part.OVERLAP: EvictedAtOnce},
        modes=frozenset({Mode.DECODE}),
        overlap=True,
        also_in=(LocationScheme.MEMO, LocationScheme.PRESET),
    ),
    Bug(
        name="pinned_slots_reused",
        family=FAMILY,
        scheme=LocationScheme.PRESET,
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/15546",
        mechanism=(
            "A copy from pinned memory reads its source when it runs, not when it is "
            "queued. The host writes the next batch's slots there first, so the current "
            "forward stores its KV in them."
        ),
        expected=seen("kv_parity", DECODE, PREFILL),
        parts={Part.OVERLAP: SlotsStagedTooSoon},
        modes=ONE_RUNNER_PER_ENGINE,
        overlap=True,
        also_in=(LocationScheme.MEMO, LocationScheme.PER_LAYER),
    ),
)
