"""Schedules: what both runs do, as data.

A schedule is a list of small frozen steps. Picks are taken modulo the number of live requests when
the step is played, so any list of steps is valid, and so is any part of it. A step without a
request to act on, or without room, does nothing.
"""

from collections.abc import Collection, Iterator
from typing import Annotated

import msgspec
from paritybit.reference.batch import Mode

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""A number in a file."""

MOST_STEPS = 2**16
"""The maximum number of steps of a schedule in a file. They play for hours."""


class BaseStep(msgspec.Struct, frozen=True, tag_field="step"):
    """One step. The tag of its class is its name in a case file."""

    @property
    def name(self) -> str:
        """The name of the step in a case file."""
        return str(self.__struct_config__.tag)


class Admit(BaseStep, frozen=True, tag="admit"):
    """Admit a request of `prompt` tokens and prefill its first `chunk` tokens."""

    prompt: Count
    chunk: Count


class Extend(BaseStep, frozen=True, tag="extend"):
    """Prefill the next `tokens` tokens of a request whose prompt is not complete."""

    pick: Count
    tokens: Count


class Prefill(BaseStep, frozen=True, tag="prefill"):
    """Admit a request per prompt, and prefill all requests whose prompt is not complete.

    One forward prefills the next `tokens` tokens of each.
    """

    prompts: tuple[Count, ...]
    tokens: Count


class Decode(BaseStep, frozen=True, tag="decode"):
    """Decode one token of each picked request. The others keep their KV."""

    picks: tuple[Count, ...]


class Draft(BaseStep, frozen=True, tag="draft"):
    """Propose tokens for each picked request, if the draft model has caught up on it.

    The slots of the draft are free again after the step.
    """

    picks: tuple[Count, ...]


class Verify(BaseStep, frozen=True, tag="verify"):
    """Verify each picked request's drafts, and free the slots of those that are not accepted.

    A request without a proposal gets random drafts. At least `accept` drafts are accepted whatever
    the target's tokens are.
    """

    picks: tuple[Count, ...]
    accept: Count


class DraftExtend(BaseStep, frozen=True, tag="draft_extend"):
    """Run the draft model on the tokens of each picked request that it has not seen."""

    picks: tuple[Count, ...]


class Finish(BaseStep, frozen=True, tag="finish"):
    """Finish a request: free its row and slots."""

    pick: Count


class Evict(BaseStep, frozen=True, tag="evict"):
    """Free the SWA slots of a request that its next query cannot see."""

    pick: Count


class Retract(BaseStep, frozen=True, tag="retract"):
    """Free a request's slots. It keeps its tokens and may be resumed."""

    pick: Count


class Resume(BaseStep, frozen=True, tag="resume"):
    """Prefill a retracted request again, including its generated tokens."""

    pick: Count


class Idle(BaseStep, frozen=True, tag="idle"):
    """Replay one of the engine's runners without requests: every row is padding."""

    pick: Count


Step = (
    Admit
    | Extend
    | Prefill
    | Decode
    | Draft
    | Verify
    | DraftExtend
    | Finish
    | Evict
    | Retract
    | Resume
    | Idle
)


def idle_modes(modes: Collection[Mode]) -> list[Mode]:
    """Return the modes that an Idle step picks from, in order: all modes except prefill.

    `modes` are the modes for which the engine has runners.
    """
    return [mode for mode in Mode if mode in modes and mode is not Mode.EXTEND]


class Schedule(msgspec.Struct, frozen=True):
    """Steps, and the seed of prompts, payloads, slot order and initial pool bytes."""

    steps: Annotated[tuple[Step, ...], msgspec.Meta(max_length=MOST_STEPS)]
    seed: Count = 0

    def up_to(self, place: int) -> "Schedule":
        """Return the schedule up to and including its step at `place`."""
        return Schedule(self.steps[: place + 1], self.seed)

    def ahead(self) -> Iterator[tuple[int, Step, tuple[Step, ...]]]:
        """Yield the place of each step, the step, and all later steps."""
        for place, step in enumerate(self.steps):
            yield place, step, self.steps[place + 1 :]
