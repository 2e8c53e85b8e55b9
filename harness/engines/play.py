"""Lockstep with an engine: each step eagerly and by the engine's runner, then the checks.

A schedule ends with the first step in which the two sides part. What is checked is
counted, so that a verdict can say on how many replays it stands.
"""

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.engines.padding import PaddingLedger
from harness.engines.pair import EngineArms
from harness.lockstep.bits import bits
from harness.schedules.schedule import Schedule, Step
from reference.batch import ForwardBatch, Mode
from subjects.engines.sglang.decode import Reads, ReplayingRunner
from subjects.engines.sglang.graphs import Replays


@dataclass
class Seen:
    """How often a property was checked and violated, and the first violation in words."""

    checked: int = 0
    violated: int = 0
    message: str | None = None

    def add(self, message: str | None) -> None:
        """Count one check, `told` None if it held."""
        self.checked += 1
        self.violated += message is not None
        self.message = self.message or message


@dataclass
class Played:
    """What playing schedules on one engine gave."""

    schedules: int = 0
    steps: int = 0
    replays: int = 0
    padded: int = 0
    events: Counter[str] = field(default_factory=Counter)
    seen: dict[str, Seen] = field(default_factory=dict)

    def check(self, name: str, message: str | None) -> bool:
        """Count a check; return whether the property held."""
        self.seen.setdefault(name, Seen()).add(message)
        return message is None


@dataclass(frozen=True)
class Replayed:
    """One replay: live logits, what its rows were told to read, and K and V of all layers."""

    bucket: int
    logits: Tensor
    reads: Reads
    values: list[Tensor]


class EnginePlay:
    """Plays schedules on both sides of a trial.

    `failing` holds the first schedule that violated each property.
    """

    def __init__(self, pair: EngineArms) -> None:
        assert isinstance(pair.runner, ReplayingRunner)
        self.pair = pair
        self.runner = pair.runner
        self.played = Played()
        self.padding = PaddingLedger(pair)
        self.failing: dict[str, Schedule] = {}

    def play(self, schedule: Schedule) -> None:
        """Play a schedule from equal starts until its end or until the sides part."""
        pair, played = self.pair, self.played
        before = {name: seen.violated for name, seen in played.seen.items()}
        played.schedules += 1
        with torch.inference_mode():
            pair.reset(schedule.seed)
            for place, step in schedule.flat():
                if not self._step(place, step):
                    break
        played.events.update(pair.world.events)
        for name, seen in played.seen.items():
            if seen.violated > before.get(name, 0):
                self.failing.setdefault(name, schedule)

    def _step(self, place: int, step: Step) -> bool:
        """Play one step; return whether the sides still agree."""
        pair = self.pair
        work = pair.world.plan(step)
        pair.mirror.follow()
        if work is None or work.batch is None:
            return True
        batch, extends = work.batch, work.mode is Mode.EXTEND
        rows, loc = pair.mirror.take(batch)
        expected = pair.eager.forward(batch)
        given = pair.runner.batch(batch, rows, loc, extend=extends)
        self.played.steps += 1
        where = f"step {place} ({step.name})"
        if extends:
            logits = pair.runner.extend(given)
            parted = not self._live(where, logits, expected["logits"])
        else:
            parted = not self._decode(where, batch, given, loc, expected["logits"])
        pair.world.commit(batch, expected)
        return not (parted | (not self._kv(where)))

    def _decode(
        self, where: str, batch: ForwardBatch, given: object, loc: Tensor, expected: Tensor
    ) -> bool:
        """Replay a decode and judge it; return whether the sides still agree."""
        pair, played = self.pair, self.played
        before = [each.clone() for each in pair.sglang.storages()]
        history = {name: each.clone() for name, each in pair.runner.statics().items()}
        pair.recapture()
        fresh = self.replay(given)
        self.rewind(before, history)
        replayed = self.replay(given)
        live, bucket = batch.live_requests, self.runner.bucket
        padded = live < bucket
        played.replays += 1
        played.padded += padded
        agree = self._live(where, replayed.logits, expected)
        agree &= played.check("write_frame", strayed(pair, where, before, loc, live, bucket))
        if padded:
            stale = {name: each.clone() for name, each in pair.runner.statics().items()}
            self.padded(where, fresh, replayed, live, bucket)
            self.padding.disturb(self, given, before, history, replayed, live)
            self.rewind(replayed.values, stale)
        return agree

    def replay(self, given: object) -> Replayed:
        """Replay a batch from the pool's present bytes."""
        replays = Replays.count
        logits = self.runner.replay(given).clone()
        done = Replays.count - replays
        message = None if done == self.runner.graphs else f"{done} graphs were replayed, not one"
        self.played.check("captured_path", message)
        values = [each.clone() for each in self.pair.sglang.storages()]
        bucket = self.runner.bucket
        return Replayed(bucket, logits, self.runner.reads(bucket), values)

    def rewind(self, storages: list[Tensor], statics: dict[str, Tensor]) -> None:
        """Give pool and static buffers earlier values."""
        for each, value in zip(self.pair.sglang.storages(), storages, strict=True):
            each.copy_(value)
        self.pair.restore(statics)

    def padded(
        self, where: str, fresh: Replayed, replayed: Replayed, live: int, bucket: int
    ) -> None:
        """Judge what the padded rows of a replay were told to read."""
        message = None
        for kind in ("full", "window"):
            now, then = getattr(replayed.reads, kind), getattr(fresh.reads, kind)
            if now[live:] != then[live:]:
                message = message or (
                    f"{where}: {bucket - live} padded rows of a bucket of {bucket} read {kind}"
                    f" slots {now[live:]}; a runner without a history reads {then[live:]}"
                )
        self.played.check("hermetic_reads", message)
        same = torch.equal(bits(replayed.logits), bits(fresh.logits))
        self.played.check(
            "hermetic_replay",
            None if same else f"{where}: live logits differ from a runner's without a history",
        )

    def _live(self, where: str, logits: Tensor, expected: Tensor) -> bool:
        same = torch.equal(bits(logits), bits(expected))
        error = float((logits - expected).abs().max())
        message = f"{where}: live logits differ from the eager reference's by up to {error:.3g}"
        return self.played.check("logits_parity", None if same else message)

    def _kv(self, where: str) -> bool:
        """Compare K and V of every live token, bit by bit."""
        pair, message = self.pair, None
        for layer in range(len(pair.config.layers)):
            ours, theirs = pair.mirror.pairs(layer)
            cache = pair.pool.cache(layer)
            for name, mine, its in zip(
                "KV", cache, pair.sglang.keys_and_values(layer), strict=True
            ):
                if not torch.equal(bits(mine[ours]), bits(its[theirs])):
                    message = message or f"{where}: {name} of live tokens differs in layer {layer}"
        return self.played.check("kv_parity", message)


def strayed(
    pair: EngineArms, where: str, before: list[Tensor], loc: Tensor, live: int, bucket: int
) -> str | None:
    """Return what a replay wrote outside its own slots and slot 0, in words.

    `before` holds K and V of all layers as they were; the pool's are as the replay left them.
    """
    for layer, changed in enumerate(changes_by_layer(before, pair.sglang.storages())):
        own = set(pair.sglang.slots(layer, loc).tolist()) | {0}
        if changed - own:
            return (
                f"{where}: {live} live rows in a bucket of {bucket} wrote"
                f" {pair.config.layers[layer]} slots {sorted(changed - own)} of layer {layer};"
                f" theirs are {sorted(own)}"
            )
    return None


def changes_by_layer(before: list[Tensor], after: list[Tensor]) -> list[set[int]]:
    """Return the slots of each layer that changed; both hold K and V of every layer in turn."""
    return [
        slots_changed(before[place : place + 2], after[place : place + 2])
        for place in range(0, len(before), 2)
    ]


def slots_changed(before: list[Tensor], after: list[Tensor]) -> set[int]:
    """Return the slots of a layer of which any bit of K or V changed."""
    found: set[int] = set()
    for left, right in zip(before, after, strict=True):
        differs = (bits(left) != bits(right)).flatten(1).any(1)
        found |= set(differs.nonzero()[:, 0].tolist())
    return found
