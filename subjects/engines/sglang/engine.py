"""One of the engine's runners as the harness takes it: `EngineUnderTest` over the engine's pool."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from paritybit.reference.allocator import Ownership
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.subjects.engines.sglang.host.settings import DECLARED
from paritybit.subjects.engines.sglang.memory.mirror import Mirror
from paritybit.subjects.engines.sglang.padded import (
    HOLDS,
    LOCATIONS,
    declared_padding,
    padded_inputs,
)
from paritybit.subjects.engines.sglang.runners.decode import (
    BACKEND_LOCATIONS,
    CpuGraphRunner,
    ReplayingRunner,
    RowSlots,
)
from paritybit.subjects.engines.shared.engine import Given, OthersEngine, offers
from paritybit.subjects.engines.shared.padded import DeclaredPadding, PaddedInput
from paritybit.subjects.protocol import (
    Forward,
    LocationDtypes,
    Offer,
    Reads,
    Replay,
    ReplayFacts,
)
from torch import Tensor

NO_TRACKING = {Offer.TRACKED_STATE: "the runner has no static inputs for it"}

Runner = TypeVar("Runner", bound=ReplayingRunner)


class SglangEngine(OthersEngine, ABC, Generic[Runner]):
    """What every runner of the engine has in common as an engine under test.

    `stored` are the SWA locations that the store was given during capture, `graphs` is how many
    graphs a replay is of.
    """

    lacks = offers(DECLARED["missing"])

    def __init__(
        self,
        runner: Runner,
        mirror: Mirror,
        stored: Sequence[Tensor],
        graphs: int,
        missing: Mapping[Offer, str],
    ) -> None:
        self.runner = runner
        self.mirror = mirror
        self.pool = mirror.pool
        self.stored = frozenset(one.dtype for one in stored)
        self._preset = self.pool.preset_locations
        super().__init__(runner.name, runner.mode, runner.statics, mirror, missing, graphs)

    @abstractmethod
    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward. RuntimeError is raised for an idle one."""

    def reset(self) -> None:
        """Start again just captured: no request owns a slot, and KV is the world's storage."""
        self.mirror.reset()
        self.recapture()

    def static_buffers(self, mode: Mode) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay of a mode reads, by name."""
        return self.runner.statics() if mode is self.mode else {}

    def state(self) -> Any:
        """Return the SWA locations that are preset for stores to come."""
        return self._preset

    def restore(self, state: Any) -> None:
        """Preset SWA locations as they were."""
        self._preset = state

    def ownership_changed(self) -> None:
        """Free what the world's allocator took; a forward takes the slots that it needs."""
        self.mirror.follow()

    def ownership(self) -> Ownership:
        """Return who holds which pages and rows, by the engine's allocator and tables."""
        return self.mirror.ownership()

    def facts(self, replay: Replay) -> ReplayFacts:
        """Return what the replay that just ran relied on."""
        return dataclasses.replace(super().facts(replay), locations=self._location_dtypes())

    def placed(self, batch: ForwardBatch | None, mode: Mode) -> tuple[Any, Tensor]:
        """Return the engine's batch for one of the world's, in the engine's slots, and those."""
        rows, loc = self.placed_rows(batch)
        assert batch is not None
        given = self.runner.batch(
            batch, rows, loc, extend=mode is Mode.EXTEND, scheduled=self.mirror.scheduled
        )
        return given, loc

    def placed_rows(self, batch: ForwardBatch | None) -> tuple[Tensor, Tensor]:
        """Return the engine's rows and slots of one of the world's batches: see `Mirror.place`."""
        if batch is None:
            raise RuntimeError(self.missing[Offer.IDLE_REPLAY])
        placed = self.mirror.place(batch)
        # Subject and fresh engine share the pool, so that each brings its own Python state.
        self.pool.preset(self._preset)
        return placed

    def slot_named(self, name: str, value: int) -> tuple[Kind, int] | None:
        """Return the world's slot that a value of a static input names; None if it names none."""
        kind = LOCATIONS.get(HOLDS.get(name, ""))
        slot = -1 if kind is None else self.mirror.ours(kind, [value])[0]
        return None if kind is None or slot < 0 else (kind, slot)

    @abstractmethod
    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs that have a padded tail, by name."""

    def notes(self) -> list[str]:
        """Return, in words, which tensors of backends were taken for a batch's."""
        return self.runner.held.notes()

    def declared_padding(self) -> Mapping[str, DeclaredPadding]:
        """Return the padding policies of the engine's registry of buffers, where it has one."""
        return declared_padding(self.runner.runner)

    def counted(self, run: Callable[[], Given]) -> Given:
        """Run a replay, and keep what of it `facts` tells and the Python state that it leaves."""
        given = super().counted(run)
        self._preset = self.pool.preset_locations
        return given

    def _in_our_slots(self, reads: RowSlots) -> Reads:
        """Return the world's slots of those that rows read in the engine's."""
        return {
            kind: [self.mirror.ours(kind, slots) for slots in rows] for kind, rows in reads.items()
        }

    def _eager(self, batch: Any) -> Output:
        """Run a batch eagerly, by the engine's own code."""
        output = self.runner.eagerly(batch)
        self._preset = self.pool.preset_locations
        return output

    def _location_dtypes(self) -> LocationDtypes | None:
        """Return the dtype of SWA locations handed over; one that is wrong, if there is one."""
        right = self.pool.translate(self.pool.held(0, 0, 1)).dtype
        wrong = sorted(self.stored - {right}, key=str)
        return LocationDtypes(wrong[0] if wrong else right, right, None) if self.stored else None


class ReplayingEngine(SglangEngine[ReplayingRunner]):
    """A runner that replays batches of its mode. Others run eagerly, by the engine's own code."""

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward, by replay where it can. RuntimeError is raised for an idle one."""
        given, _ = self.placed(batch, mode)
        assert batch is not None
        if self.runner_name(mode) is None or not self.runner.can_run(given):
            return Forward(self._eager(given), None)
        output = self.counted(partial(self.runner.replay, given))
        bucket, live = self.runner.bucket, self.runner.live_size(given)
        replay = Replay(
            runner=self.runner.name,
            bucket=bucket,
            live_size=live,
            padded=live < bucket,
            output=output,
            live_rows=batch.live_requests * self.runner.tokens_per_request,
            live_output=output,
            defined=output,
            reads=self._in_our_slots(self.runner.reads(given)),
            given=self.runner.given(given),
        )
        return Forward(output, replay)

    def notes(self) -> list[str]:
        """Return, in words, what was seen of the engine that no property judges."""
        found = super().notes()
        if isinstance(self.runner, CpuGraphRunner) and self.runner.left_behind:
            found.append(
                "the SWA locations from an eager forward are still set when a batch is "
                "replayed; paritybit clears them before each replay"
            )
        if self.runner.locations != BACKEND_LOCATIONS:
            found.append(
                f"paritybit calls the engine's {self.runner.locations}, from which its "
                f"store takes SWA locations, {BACKEND_LOCATIONS}"
            )
        return found

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs that have a padded tail, by name."""
        return padded_inputs(self.runner.statics(), self.mode, self.runner.tokens_per_request)
