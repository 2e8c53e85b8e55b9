"""Who left each element of an engine's static inputs, told from what they hold step by step."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from paritybit.harness.checks.of_steps.live_inputs import batch_axis
from paritybit.harness.engines.statics import given
from paritybit.harness.explain.facts import CAPTURE, How, StaticInputRow, Writer
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import ForwardBatch
from torch import Tensor

SECTIONS = 3
"""Rows of a static input that holds a number of each section of a position."""

MOST_ELEMENTS = 512
"""Elements at most of a static input that is followed."""


@dataclass
class Held:
    """A static input over a schedule: what it holds, what it held just captured, who left what."""

    captured: Tensor
    values: Tensor
    left_by: list[Writer]
    how: list[How]


@dataclass
class InputLedger:
    """The static inputs of a runner that hold one number an element, by name.

    An element was left by the last step that gave it what its batch brings, or that changed it.
    """

    runner: str
    inputs: dict[str, Held] = field(default_factory=dict)

    def begin(self, captured: Mapping[str, Tensor]) -> None:
        """Take what static inputs hold just captured."""
        for name, buffer in captured.items():
            if one_number_each(buffer):
                self.inputs[name] = self._captured(buffer.clone())

    def see(self, static: Mapping[str, Tensor], observation: Observation) -> None:
        """Follow one forward, by replay or not, after which static inputs hold these."""
        for name, buffer in static.items():
            if name in self.inputs:
                self._follow(self.inputs[name], name, buffer.clone(), observation)

    def _captured(self, held: Tensor) -> Held:
        """Return a static input that nothing has written since the capture."""
        nobody = Writer(CAPTURE, self.runner, 0, None)
        count = held.numel()
        return Held(held.clone(), held.clone(), [nobody] * count, ["capture"] * count)

    def _follow(self, held: Held, name: str, now: Tensor, observation: Observation) -> None:
        """Note who wrote what of one static input in a step."""
        rows = requests_of(observation, name, now)
        replay, spans = observation.replay, observation.graph.spans
        by = self.runner if replay is not None else f"{observation.mode} without a graph"
        alone = observation.graph.serial_at(spans[0].row) if len(spans) == 1 else None
        columns = now.shape[-1]
        right = brought(observation, name, now).tolist()
        changed = (now != held.values).flatten().tolist()
        for element, (copied, differs) in enumerate(zip(right, changed, strict=True)):
            row = element % columns
            if copied or differs:
                request = rows[row] if row < len(rows) else None
                request = request if replay is not None else alone
                held.left_by[element] = Writer(observation.place, by, row, request)
                held.how[element] = "copied" if replay is None or row < len(rows) else "reset"
        held.values = now

    def stale(self, name: str, observation: Observation) -> list[int]:
        """Return the elements that a step did not write and that a capture leaves otherwise."""
        held = self.inputs[name]
        otherwise = (held.values != held.captured).flatten().tolist()
        return [
            element
            for element, writer in enumerate(held.left_by)
            if otherwise[element] and writer.step != observation.place
        ]

    def rows(self, observation: Observation, also: Collection[str]) -> tuple[StaticInputRow, ...]:
        """Return the static inputs that a batch brings as a replay left them, and `also` some."""
        return tuple(
            self._row(name, observation)
            for name, held in self.inputs.items()
            if name in also or requests_of(observation, name, held.values)
        )

    def _row(self, name: str, observation: Observation) -> StaticInputRow:
        held, stale = self.inputs[name], set(self.stale(name, observation))
        values, live = held.values, len(requests_of(observation, name, held.values))
        columns = shown_columns(observation, live, values)
        places = torch.arange(values.numel()).view(values.shape)[..., :columns].flatten().tolist()
        flat = values.flatten().tolist()
        return StaticInputRow(
            name=name,
            dtype=str(values.dtype).removeprefix("torch."),
            axis=f"{SECTIONS} x token" if values.ndim > 1 else "row",
            padding="the engine's own padding",
            live=live,
            values=tuple(int(flat[place]) for place in places),
            left_by=tuple(held.left_by[place].step for place in places),
            stale=tuple(at for at, place in enumerate(places) if place in stale),
        )


def one_number_each(buffer: Tensor) -> bool:
    """Whether a static input is few whole numbers, in one line or in sections."""
    whole = not buffer.dtype.is_floating_point and buffer.numel() <= MOST_ELEMENTS
    return whole and (buffer.ndim == 1 or (buffer.ndim == 2 and buffer.shape[0] == SECTIONS))


def requests_of(observation: Observation, name: str, held: Tensor) -> list[int | None]:
    """Return the request of each live element of a section; None where that is not known."""
    right, batch = given(observation, name), observation.graph.batch
    if right is None or batch is None:
        return []
    live = right.shape[batch_axis(held, right)] if right.ndim == held.ndim else 0
    serials = [observation.graph.serial_at(span.row) for span in batch.spans]
    return spread(serials, batch, live)


def brought(observation: Observation, name: str, held: Tensor) -> Tensor:
    """Return which elements of a static input hold what the batch brings for them, bool, flat."""
    found = torch.zeros_like(held, dtype=torch.bool)
    right = given(observation, name)
    if right is not None and right.ndim == held.ndim:
        axis = batch_axis(held, right)
        live = held.narrow(axis, 0, right.shape[axis])
        found.narrow(axis, 0, right.shape[axis]).copy_(live == right)
    return found.flatten()


def spread(serials: list[int], batch: ForwardBatch, live: int) -> list[int | None]:
    """Return the request of each of `live` elements of a batch: its tokens, or some of each."""
    if live == batch.live_tokens:
        spans = zip(serials, batch.spans, strict=True)
        return [serial for serial, span in spans for _ in range(span.end - span.begin)]
    if live % len(serials) == 0:
        return [serial for serial in serials for _ in range(live // len(serials))]
    return [None] * live


def shown_columns(observation: Observation, live: int, held: Tensor) -> int:
    """Return how many elements of a section its bucket has: all, where the batch brings none."""
    replay = observation.replay
    if replay is None or not live or not replay.live_size:
        return held.shape[-1]
    return min(held.shape[-1], live * replay.bucket // replay.live_size)
