"""The engine's speculative runners: which slots the rows that they hand to attention would read.

They are built without being captured, so that an observation holds what padded rows were
handed, with a history and just built, and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.checks.of_steps.hermetic_replay import FreshReplay
from harness.checks.property import Property
from harness.checks.table import PROPERTIES, not_asked
from harness.engines import statics
from harness.engines.adapters import host_of, pool_of
from harness.lockstep.config import DTYPES, TrialConfig
from harness.lockstep.observation import Observation, Snapshot
from harness.schedules.schedule import Idle
from reference.batch import Mode
from reference.config import PRESETS, Kind
from reference.model import Model
from reference.pool import KVLayout
from subjects.engines.sglang.host import Host, StubConfig
from subjects.engines.sglang.loading import Engine
from subjects.engines.sglang.pool import SglangPool
from subjects.engines.sglang.speculative import (
    TOPK,
    EagleDraftExtendRunner,
    EagleDraftRunner,
    FrozenKvMtpRunner,
    SpeculativeRunner,
)
from subjects.protocol import Offer, Reads, Replay

SPECULATING: Mapping[str, tuple[type[SpeculativeRunner], Mode]] = {
    runner.name: (runner, mode)
    for runner, mode in (
        (EagleDraftRunner, Mode.DRAFT),
        (EagleDraftExtendRunner, Mode.DRAFT_EXTEND),
        (FrozenKvMtpRunner, Mode.FROZEN_DRAFT),
    )
}
"""The engine's speculative runners by name, and what they would run."""

MISSING = dict.fromkeys(
    set(Offer) - {Offer.FRESH_ENGINE},
    "the runner is built without being captured: the rows that it hands to attention are seen,"
    " and no more",
)
"""What a speculative runner does not offer, and why."""

LENGTH = 8
"""Tokens of each request."""

SIZES = ((4, 3), (3, 2), (8, 5))
"""How many requests fill a bucket, and how many follow them: the latter are padded."""


def rules_asked(missing: Mapping[Offer, str]) -> tuple[list[Property], dict[str, str]]:
    """Return the properties that single observations can be asked, and why not of all others."""
    unasked = not_asked(missing)
    rules = [rule for rule in PROPERTIES.values() if rule.flag and rule.id not in unasked]
    kept = {rule.id for rule in rules}
    whole = "single populates are observed, and no whole schedule"
    return rules, {name: unasked.get(name, whole) for name in PROPERTIES if name not in kept}


@dataclass
class SpeculativeLeg:
    """One speculative runner over a pool in which each request has tokens.

    `asked` collects the settings that the engine asked for and nobody declared.
    """

    engine: Engine
    trial: TrialConfig
    asked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Build the runner, and keep what its static inputs hold as built."""
        kind, self.mode = SPECULATING[self.trial.runner]
        config, dtype = PRESETS[self.trial.preset].tiny, DTYPES[self.trial.dtype]
        self.model = Model(config, dtype, torch.device(self.trial.device))
        self.host: Host = host_of(self.engine, self.trial, self.asked)
        self.pool: SglangPool = pool_of(self.engine, self.model, self.trial)
        self.host.forget_shared_buffers()
        ops = self.trial.ops()
        self.runner = kind(self.host, self.model, self.pool, ops, own_kernels=False)
        rows = list(range(1, max(full for full, _ in SIZES) + 1))
        self.pool.extend(rows, [0] * len(rows), [LENGTH] * len(rows))

    def observations(self) -> Iterator[Observation]:
        """Yield what is observed of shrinking batches, each of which follows a fuller one."""
        buffers = self.runner.statics()
        built = {name: buffer.clone() for name, buffer in buffers.items()}
        with torch.inference_mode():
            for place, (full, live) in enumerate(SIZES):
                self.runner.hand_over(self._batch(full))
                before = {name: buffer.clone() for name, buffer in buffers.items()}
                reads = self._reads(live)
                held = {name: buffer.clone() for name, buffer in buffers.items()}
                for name, buffer in buffers.items():
                    buffer.copy_(built[name])
                fresh = FreshReplay({}, self._reads(live))
                extra = {"hermetic_replay": fresh, statics.RUN: before}
                yield self._observation(place, live, reads, held, extra)

    def _observation(
        self,
        place: int,
        live: int,
        reads: Reads,
        held: Mapping[str, Tensor],
        extra: Mapping[str, Any],
    ) -> Observation:
        """Return an observation of what rows were told to read alone: all else in it is empty."""
        rows = self.runner.rows
        bucket = len(reads[Kind.FULL])
        replay = Replay(
            runner=self.runner.name,
            bucket=bucket,
            live_size=live * rows,
            padded=live * rows < bucket,
            output={},
            live_rows=live * rows,
            live_output={},
            defined={},
            reads=reads,
            given={"req_pool_indices": self._batch(live).req_pool_indices},
        )
        nothing = torch.zeros(0)
        unseen = Snapshot(nothing, nothing, nothing, nothing, (), None, None)
        return Observation(
            place=place,
            step=Idle(0),
            mode=self.mode,
            under_test=self.runner.name,
            layout=KVLayout({}, self.trial.sizes),
            compared=nothing,
            eager=unseen,
            graph=unseen,
            replay=replay,
            facts=None,
            expected_graph=False,
            static=held,
            extra=extra,
        )

    def _reads(self, requests: int) -> Reads:
        """Return the full slots that the rows of a bucket would read, by the rows handed over."""
        handed = self.runner.hand_over(self._batch(requests))
        bucket = min(size for size in self.trial.buckets if size >= requests)
        count = bucket * self.runner.rows
        rows, lengths = handed.rows[:count].tolist(), handed.lengths[:count].tolist()
        slots: Sequence[Sequence[int]] = [
            self.pool.held(row, 0, length).tolist()
            for row, length in zip(rows, lengths, strict=True)
        ]
        return {Kind.FULL: slots}

    def _batch(self, requests: int) -> StubConfig:
        """Return a batch of requests as a draft worker makes them."""
        runner, device, hidden = self.runner, self.pool.device, self.model.config.hidden
        rows = torch.arange(1, requests + 1, device=device).repeat_interleave(runner.rows)
        tokens = requests * runner.tokens
        lengths = torch.full((len(rows),), LENGTH, device=device)
        state_rows = tokens if runner.tokens > TOPK else requests

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        spec: dict[str, Any] = {
            "topk_p": zeros(requests, TOPK, dtype=torch.float32),
            "topk_index": zeros(requests, TOPK),
            "bonus_tokens": zeros(requests),
            "hidden_states": zeros(state_rows, hidden, dtype=torch.float32),
        }
        values = {
            "batch_size": len(rows),
            "input_ids": zeros(tokens),
            "positions": torch.full((tokens,), LENGTH - 1, device=device),
            "out_cache_loc": zeros(requests * runner.locations) + 1,
            "req_pool_indices": rows,
            "seq_lens": lengths,
            "seq_lens_cpu": lengths.cpu(),
            "seq_lens_sum": int(lengths.sum()),
            "spec_info": StubConfig(spec, self.asked, "spec_info"),
        }
        return StubConfig(values, self.asked, "batch")
