"""What an engine's padding holds, and whether anything live depends on it.

A further run of each padded replay: the tail of one static input is overwritten with other
valid values before it. If they are still there afterwards the input is kept, not reset;
whether any live bit moved then says if somebody reads it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from paritybit.harness.checks.differences import first_kv_difference
from paritybit.harness.engines.statics import undone
from paritybit.harness.lockstep.bits import any_set, bits, cloned, outputs_differ
from paritybit.harness.lockstep.noise import COUNTS, index_bounds
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION
from paritybit.reference.model import Output
from paritybit.subjects.engines.shared.engine import TriedEngine
from paritybit.subjects.engines.shared.padded import KEPT, RESET
from torch import Tensor

RUN = "padding"
"""What the further run is called in an observation."""

AT_ONCE = 2
"""How many inputs are disturbed at each padded replay, one at a time."""


@dataclass
class Entry:
    """One input: how often its tail was disturbed, outlived that, and moved a live bit.

    `left` are the values that were found in tails that did not outlive it.
    """

    dtype: str
    disturbed: int = 0
    outlived: int = 0
    moved: int = 0
    message: str | None = None
    left: set[int] = field(default_factory=set)

    @property
    def verdict(self) -> str:
        """What is claimed of this input, in words."""
        if not self.disturbed:
            return "not decided"
        if not self.outlived:
            return "reset"
        return "kept, and read" if self.moved else "kept, nobody live reads it"

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON data."""
        return {**vars(self), "left": sorted(self.left), "verdict": self.verdict}


@dataclass(frozen=True)
class Disturbed:
    """One further run: the input, its tail afterwards, and what the run gave and left."""

    name: str
    outlived: bool
    tail: Tensor
    output: Output
    storage: Tensor


class PaddingLedger:
    """The entries of a runner's static inputs, by name."""

    def __init__(self, subject: TriedEngine, pair: Pair) -> None:
        trial = pair.trial
        self.subject = subject
        self.by_token = subject.mode is Mode.EXTEND
        self.buckets = sorted(trial.token_buckets if self.by_token else trial.buckets)
        counts = dict.fromkeys(COUNTS, SPECULATION.draft_tokens + 1)
        self.bounds = {**index_bounds(pair.config, trial.sizes), **counts}
        self.entries = {
            name: Entry(str(held.buffer.dtype).removeprefix("torch."))
            for name, held in subject.padded_inputs().items()
        }
        self.runs = 0
        self.at_once = AT_ONCE

    def disturb(self, pair: Pair, planned: PlannedStep) -> list[Disturbed]:
        """Replay a padded batch on the subject, each time with the next input's tail overwritten.

        Leaves the subject and its world as they were.
        """
        subject, batch = self.subject, planned.graph.batch
        assert batch is not None
        live = batch.live_tokens if self.by_token else batch.live_requests
        names = sorted(self.entries)
        bucket = next(size for size in self.buckets if size >= live)
        if live == bucket:
            return []
        found = []
        for _ in range(self.at_once):
            self.runs += 1
            name = names[self.runs % len(names)]
            held = subject.padded_inputs()[name]
            tail = held.tail(batch, bucket)
            other = self._other_values(tail, self.bounds.get(held.holds, math.inf))
            with undone(pair, planned):
                tail.copy_(other)
                forward = pair.run_subject(planned)
                if forward.replay is None:  # What nobody replays, nobody populates.
                    return []
                output = cloned(forward.output)
                storage = pair.graph_pools.storage.clone()
                outlived = bool((tail == other).all())
                found.append(Disturbed(name, outlived, tail.clone(), output, storage))
        return found

    def see(self, observation: Observation) -> None:
        """Count what the further runs of a step say, beside what the step itself gave."""
        for disturbed in observation.extra.get(RUN, ()):
            entry, moved = self.entries[disturbed.name], live_difference(observation, disturbed)
            entry.disturbed += 1
            entry.outlived += disturbed.outlived
            if not disturbed.outlived:
                entry.left |= {int(value) for value in disturbed.tail.flatten().tolist()}
            entry.moved += moved is not None
            entry.message = entry.message or moved

    def policies(self) -> list[dict[str, Any]]:
        """Hold what was observed against the policies that the engine declares, if it does."""
        found = []
        for name, declared in self.subject.declared_padding().items():
            entry = self.entries.get(name)
            observed = holds = "not judged" if entry is None else "not tried"
            if entry is not None and entry.disturbed:
                kept = bool(entry.outlived)
                observed = KEPT if kept else f"reset to {sorted(entry.left)}"
                as_declared = declared.meaning == (KEPT if kept else RESET)
                right_value = kept or entry.left == {declared.value}
                holds = "yes" if as_declared and right_value else "no"
            if declared.meaning is None:
                holds = "not known"
            found.append(
                {"buffer": name, "declared": declared.word, "observed": observed, "holds": holds}
            )
        return found

    def unknown_word(self) -> str | None:
        """Say which policy the engine declares by a word of no known meaning, if it does."""
        for name, declared in self.subject.declared_padding().items():
            if declared.meaning is None:
                word = declared.word
                return (
                    f"the engine declares the padding of {name} as {word}, which is an "
                    "unknown policy"
                )
        return None

    def _other_values(self, tail: Tensor, bound: float) -> Tensor:
        """Return valid values that no reset gives; of numbers, none that the tail holds."""
        if tail.dtype is torch.bool:
            return torch.ones_like(tail)
        if bound == 2:  # Bits: none stays as it is.
            return 1 - tail
        added = 2 + self.runs % 3
        values = tail + added
        return torch.where(values < bound, values, added).to(tail.dtype)


def live_difference(observation: Observation, disturbed: Disturbed) -> str | None:
    """Say which live bit a further run changed, if any: an output, or KV outside slot 0."""
    right = observation.graph
    assert right.output is not None
    if bool(outputs_differ(right.output, disturbed.output)):
        return "live logits changed"
    storages = right.after, disturbed.storage
    if bool(any_set((bits(storages[0]) != bits(storages[1])) & observation.compared)):
        where: Mapping[str, Any] = first_kv_difference(
            observation.layout, *storages, observation.compared
        )
        changed = where.get("section") or f"KV of layer {where['layer']}"
        return f"{changed} changed outside slot 0"
    return None
