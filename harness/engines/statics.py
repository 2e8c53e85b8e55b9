"""An engine's static inputs around one replay: what they held before it, and their padded tails."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from paritybit.harness.checks.of_steps.live_inputs import batch_axis
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.subjects.engines.shared.tensors import bring_back
from torch import Tensor

RUN = "statics"
"""What the further run is called in an observation."""


def held_before(pair: Pair, planned: PlannedStep) -> Mapping[str, Tensor]:
    """Return copies of what the static inputs of a step's runner hold before it is populated."""
    buffers = pair.subject.static_buffers(planned.mode)
    return {name: buffer.clone() for name, buffer in buffers.items()}


@contextmanager
def undone(pair: Pair, planned: PlannedStep) -> Iterator[Mapping[str, Tensor]]:
    """Give the static inputs of a step's runner; afterwards undo what a run on the subject did.

    That is to them, to its Python state and to the graph world's KV.
    """
    subject = pair.subject
    history, state = held_before(pair, planned), subject.state()
    yield subject.static_buffers(planned.mode)
    bring_back(subject.static_buffers(planned.mode), history)
    subject.restore(state)
    pair.restore_graph()


def before(observation: Observation) -> Mapping[str, Tensor]:
    """Return what static inputs held before the replay; what they hold now if nobody looked."""
    found: Mapping[str, Tensor] = observation.extra.get(RUN, observation.static)
    return found


def given(observation: Observation, name: str) -> Tensor | None:
    """Return what the batch of a replay brings for a static input, None if it brings nothing."""
    replay = observation.replay
    return (replay.given or {}).get(name) if replay is not None else None


def tail(observation: Observation, name: str, held: Tensor) -> Tensor:
    """Return the padded part of what a static input held, flat.

    It begins where the batch's own values end, and is as long as those are for the rows that
    the bucket has beyond the live ones; empty for an input that the batch does not bring.
    """
    replay, right = observation.replay, given(observation, name)
    if replay is None or right is None or not replay.live_size:
        return held.flatten()[:0]
    axis = batch_axis(held, right)
    live = right.shape[axis]
    end = live * replay.bucket // replay.live_size
    return held.narrow(axis, live, min(end, held.shape[axis]) - live).flatten()


@dataclass
class Judged:
    """Which static inputs replays had, and of which it is known what they must hold.

    `there` are all of them; `live` those whose live part must be what the batch brings; `padding`
    those of whose padding the engine's contract says what it must be.
    """

    there: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)
    padding: set[str] = field(default_factory=set)

    def see(self, observation: Observation) -> None:
        """Take note of the static inputs of a step that replayed."""
        replay = observation.replay
        if replay is not None:
            self.there.update(observation.static)
            self.live.update(replay.given or ())
            self.padding.update(replay.padding)

    def notes(self, disturbed: Collection[str]) -> list[str]:
        """Return, in words, which inputs no property judges by themselves.

        `disturbed` are those whose padded tails were overwritten: that judges these tails.
        """
        live = self.there - self.live
        padding = self.there - self.padding - set(disturbed)
        unknown = {
            "": live & padding,
            "the live part of ": live - padding,
            "the padding of ": padding - live,
        }
        return [
            f"not checked directly: {part}{listed(names)}. The expected values are not "
            "known, so an error there shows only in what a replay reads, writes or "
            "returns"
            for part, names in unknown.items()
            if names
        ]


MANY = 3
"""So many static inputs of one holder, such as a backend, or more are counted and not named."""


def listed(names: Collection[str]) -> str:
    """Return static inputs by name; of a holder that has `MANY` of them or more, how many."""
    held = dict[str, list[str]]()
    for name in sorted(names):
        held.setdefault(name.rpartition(".")[0], []).append(name)
    return ", ".join(
        part
        for holder, own in sorted(held.items())
        for part in (own if not holder or len(own) < MANY else [f"{len(own)} of {holder}"])
    )
