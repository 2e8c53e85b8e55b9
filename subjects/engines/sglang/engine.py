"""One of the engine's runners as the harness takes it: `EngineUnderTest` over the engine's pool."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import Tensor

from reference.batch import ForwardBatch, Mode
from reference.model import Output
from subjects.captured import facts_of
from subjects.engines.sglang.decode import CpuGraphRunner, ReplayingRunner
from subjects.engines.sglang.graphs import Replays
from subjects.engines.sglang.mirror import Mirror
from subjects.engines.sglang.prefill import PrefillRunner
from subjects.engines.sglang.runner import SglangRunner
from subjects.protocol import (
    Forward,
    LocationDtypes,
    Offer,
    Overrides,
    OwnArithmetic,
    Replay,
    ReplayFacts,
)

NOT_OFFERED = {
    Offer.LARGER_BUCKET: "the engine alone chooses the bucket of a batch",
    Offer.NOISE: "noise has no way into the engine's own request table and slot map;"
    " the tails of its static inputs are overwritten one by one instead",
    Offer.PYTHON_STATE: "its objects are a server's, and no list says which of them may change",
    Offer.IDLE_REPLAY: "the engine's scheduler makes no batch without a request",
    Offer.ALLOCATOR: "the harness plans who holds which slot; the engine's own allocator follows,"
    " and is not read",
    Offer.INPUTS: "its static inputs have other names and layouts; what the padding of each held"
    " is in the table of padding",
    Offer.CROSS_ATTENTION: "the engine's attention backends for windows refuse it",
}
"""What no runner of the engine offers, and why."""

UNCAPTURED = "the runner is built without being captured: what it populates is seen, and no more"

WITHOUT_CAPTURE = dict.fromkeys(
    (Offer.ARITHMETIC, Offer.KV, Offer.FRESH_ENGINE, Offer.GRAPHS, Offer.READS), UNCAPTURED
)
"""What a prefill runner does not offer."""

OWN_KERNELS = {
    Offer.ARITHMETIC: "the engine's own attention kernels round otherwise than the reference",
    Offer.FRESH_ENGINE: "with the engine's own kernels one runner is captured; replays beside one"
    " without a history are those with our arithmetic",
}
"""What a runner with the engine's own kernels does not offer."""

NO_TRACKING = {Offer.TRACKED_STATE: "the runner has no static inputs for it"}

PADDED_INPUTS = {
    **{
        name: name
        for name in (
            "input_ids",
            "positions",
            "mrope_positions",
            "req_pool_indices",
            "seq_lens",
            "seq_lens_cpu",
            "out_cache_loc",
            "out_cache_loc_swa",
            "mamba_track_indices",
            "mamba_track_mask",
            "topk_p",
            "topk_index",
            "hidden_states",
            "extend_seq_lens",
            "num_correct_drafts",
            "num_accept_tokens",
        )
    },
    "num_accepted_drafts": "num_correct_drafts",
    "num_accepted_tokens": "num_accept_tokens",
    "bonus_tokens": "input_ids",
    "attention.cuda_graph_swa_out_cache_loc": "out_cache_loc_swa",
}
"""Static inputs of a runner that have rows for each request, and what each holds."""

KEPT, RESET = "kept", "reset"

POLICIES = {
    "keep_pad": KEPT,
    "foreach_copy": KEPT,
    "fill_once": KEPT,
    "fill_sentinel": RESET,
    "zero": RESET,
}
"""What the engine's words for a padding policy come to."""


@dataclass(frozen=True)
class DeclaredPadding:
    """What the engine declares that the padding of a buffer holds: its word, and its meaning.

    `meaning` is "kept" or "reset", to `value`; None for a word that is not known.
    """

    word: str
    meaning: str | None
    value: Any


@dataclass(frozen=True)
class PaddedInput:
    """A static input with as many rows for each of `requests`, on its first axis.

    Positions in sections have them on their last. `holds` is the name of our own input that
    holds the same: its valid values are known.
    """

    buffer: Tensor
    holds: str
    requests: int

    def tail(self, live: int, bucket: int) -> Tensor:
        """Return the rows of the requests `live` .. `bucket` - 1."""
        axis = -1 if self.holds == "mrope_positions" else 0
        each = self.buffer.shape[axis] // self.requests
        return self.buffer.narrow(axis, live * each, (bucket - live) * each)


Runner = TypeVar("Runner", bound=SglangRunner)


class SglangEngine(ABC, Generic[Runner]):
    """What every runner of the engine has in common as an engine under test.

    `stored` are the dtypes of SWA locations that the store was given during capture.
    """

    arithmetic: OwnArithmetic | None = None
    eager_modes: frozenset[Mode] = frozenset()

    def __init__(
        self,
        runner: Runner,
        mirror: Mirror,
        mode: Mode,
        stored: Collection[torch.dtype],
        missing: Mapping[Offer, str],
    ) -> None:
        self.runner = runner
        self.mirror = mirror
        self.pool = mirror.pool
        self.mode = mode
        self.stored = frozenset(stored)
        self.missing: Mapping[Offer, str] = {**NOT_OFFERED, **missing}
        self._preset = self._captured_preset = self.pool.preset_locations
        self._captured = {name: buffer.clone() for name, buffer in runner.statics().items()}
        self._captured_facts = facts_of(runner.statics())
        self._replays = self._allocated = 0
        self._locations: torch.dtype | None = None

    @abstractmethod
    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward. RuntimeError is raised for an idle one."""

    def reset(self) -> None:
        """Start again just captured: no request owns a slot, and KV is the world's storage."""
        self.mirror.reset()
        self.recapture()

    def runner_name(self, mode: Mode) -> str | None:
        """Return the runner's name for batches of its mode, None for others."""
        return self.runner.name if mode is self.mode else None

    def static_buffers(self, mode: Mode) -> Mapping[str, Tensor]:
        """Return every static buffer that a replay of a mode reads, by name."""
        return self.runner.statics() if mode is self.mode else {}

    def all_static_buffers(self) -> Sequence[Mapping[str, Tensor]]:
        """Return the static buffers of the one runner."""
        return [self.runner.statics()]

    def recapture(self) -> None:
        """Give every static buffer, and the Python state, what they held after capture."""
        for name, buffer in self.runner.statics().items():
            if name in self._captured:
                buffer.copy_(self._captured[name])
        self._preset = self._captured_preset

    def python_objects(self) -> NoReturn:
        """Raise RuntimeError: see `missing`."""
        raise RuntimeError(self.missing[Offer.PYTHON_STATE])

    def equalize_padding(self, mode: Mode, values: Mapping[str, int]) -> None:
        """Do nothing: of an output live rows alone are compared."""

    def state(self) -> Any:
        """Return the SWA locations that are preset for stores to come."""
        return self._preset

    def restore(self, state: Any) -> None:
        """Preset SWA locations as they were."""
        self._preset = state

    def ownership_changed(self) -> None:
        """Free what the world's allocator took; a forward takes the slots that it needs."""
        self.mirror.follow()

    def read_kv(self) -> None:
        """Write the engine's KV to the world's storage."""
        self.mirror.read_kv()

    def write_kv(self) -> None:
        """Take the engine's KV from the world's storage."""
        self.mirror.write_kv()

    def facts(self, replay: Replay) -> ReplayFacts:
        """Return what the replay that just ran relied on."""
        return ReplayFacts(
            captured_buffers=self._captured_facts,
            buffers=facts_of(self.runner.statics()),
            locations=self._location_dtypes(),
            allocated=self._allocated,
            graphs_replayed=self._replays,
            graphs_expected=int(self.runner.graphs),
        )

    def forward_overridden(
        self, batch: ForwardBatch | None, mode: Mode, overrides: Overrides
    ) -> NoReturn:
        """Raise RuntimeError: nothing of the engine's forward can be done otherwise."""
        raise RuntimeError("nothing of the engine's forward can be done otherwise")

    def replay_in_largest_bucket(self, batch: ForwardBatch) -> NoReturn:
        """Raise RuntimeError: see `missing`."""
        raise RuntimeError(self.missing[Offer.LARGER_BUCKET])

    def placed(self, batch: ForwardBatch | None, mode: Mode) -> tuple[Any, Tensor]:
        """Return the engine's batch for one of the world's, in the engine's slots, and those."""
        rows, loc = self.placed_rows(batch)
        assert batch is not None
        return self.runner.batch(batch, rows, loc, extend=mode is Mode.EXTEND), loc

    def placed_rows(self, batch: ForwardBatch | None) -> tuple[Tensor, Tensor]:
        """Return the engine's rows and slots of one of the world's batches: see `Mirror.place`."""
        if batch is None:
            raise RuntimeError(self.missing[Offer.IDLE_REPLAY])
        placed = self.mirror.place(batch)
        # Subject and fresh engine share the pool, so that each brings its own Python state.
        self.pool.preset(self._preset)
        return placed

    def padded_inputs(self) -> Mapping[str, PaddedInput]:
        """Return the static inputs that have a padded tail, by name."""
        requests = max(self.runner.runner.capture_bs)
        return {
            name: PaddedInput(buffer, PADDED_INPUTS[name], requests)
            for name, buffer in self.runner.statics().items()
            if name in PADDED_INPUTS
        }

    def declared_padding(self) -> Mapping[str, DeclaredPadding]:
        """Return the padding policies of the engine's registry of buffers, where it has one."""
        registry = getattr(self.runner.runner, "buffer_registry", None)
        slots = getattr(registry, "_slots", {})
        found = {}
        for name, slot in slots.items():
            word = str(slot.padding_policy.value)
            value = {"zero": 0, "fill_sentinel": slot.pad_value}.get(word)
            found[name] = DeclaredPadding(word, POLICIES.get(word), value)
        return found

    def _extended(self, batch: Any) -> Output:
        """Run a prefill eagerly, by the engine's own code."""
        output = self.runner.extend(batch)
        self._preset = self.pool.preset_locations
        return output

    def _location_dtypes(self) -> LocationDtypes | None:
        """Return the dtype of SWA locations handed over; one that is wrong, if there is one."""
        right = self.pool.translate(self.pool.held(0, 0, 1)).dtype
        handed = {self._locations} if self._locations is not None else self.stored
        wrong = sorted(handed - {right}, key=str)
        return LocationDtypes(wrong[0] if wrong else right, right, None) if handed else None


class DecodingEngine(SglangEngine[ReplayingRunner]):
    """A runner of decodes. Prefills run eagerly, by the engine's own code."""

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Run one forward, a decode by replay. RuntimeError is raised for an idle one."""
        given, _ = self.placed(batch, mode)
        assert batch is not None
        if mode is Mode.EXTEND:
            return Forward(self._extended(given), None)
        replays, allocated = Replays.count, Replays.allocated
        output = self.runner.replay(given)
        self._replays = Replays.count - replays
        self._allocated = Replays.allocated - allocated
        self._preset = self.pool.preset_locations
        bucket = self.runner.bucket
        replay = Replay(
            runner=self.runner.name,
            bucket=bucket,
            live_size=batch.live_requests,
            padded=batch.live_requests < bucket,
            output=output,
            live_rows=batch.live_requests,
            live_output=output,
            defined=output,
            reads=self._reads(bucket),
        )
        return Forward(output, replay)

    def notes(self) -> list[str]:
        """Return, in words, what was seen of the engine that no property judges."""
        if isinstance(self.runner, CpuGraphRunner) and self.runner.left_behind:
            return [
                "the SWA locations that an eager forward preset are still set when a batch is"
                " replayed; they were cleared before each replay here"
            ]
        return []

    def _reads(self, bucket: int) -> Mapping[str, Sequence[Sequence[int]]]:
        reads = self.runner.reads(bucket)
        return {
            kind: [self.mirror.ours(kind, slots) for slots in rows] for kind, rows in reads.items()
        }


class PrefillEngine(SglangEngine[PrefillRunner]):
    """A runner of prefills that is not captured: it is populated, then the prefill runs eagerly.

    `tails` are what the padding of each buffer held at each padded prefill.
    """

    BUFFERS = ("input_ids", "positions", "mrope_positions", "out_cache_loc", "out_cache_loc_swa")

    def reset(self) -> None:
        """Start again, and forget what padding held."""
        super().reset()
        self.tails: dict[str, list[Tensor]] = {}

    def facts(self, replay: Replay) -> ReplayFacts:
        """Return the dtype of the static SWA locations, if the runner has such."""
        return ReplayFacts(locations=self._location_dtypes())

    def forward(self, batch: ForwardBatch | None, mode: Mode) -> Forward:
        """Populate the runner with a prefill, then run that eagerly."""
        given, _ = self.placed(batch, mode)
        assert batch is not None
        static, tokens = self.runner.populate(given), batch.live_tokens
        locations = getattr(static, "out_cache_loc_swa", None)
        self._locations = None if locations is None else locations.dtype
        for name in self.BUFFERS:
            values = getattr(static, name, None)
            if values is not None and values.shape[-1] > tokens:
                self.tails.setdefault(name, []).append(values[..., tokens:].clone())
        bucket = static.input_ids.shape[0]
        output = self._extended(given)
        replay = Replay(
            runner=self.runner.name,
            bucket=bucket,
            live_size=tokens,
            padded=tokens < bucket,
            output=output,
            live_rows=batch.live_requests,
            live_output=output,
            defined={},
        )
        return Forward(output, replay)
