"""How the violated property judges a forward that was run again with one thing changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from paritybit.harness.explain.provenance import layers_by_address
from paritybit.harness.explain.recorded import Element, RecordedForward, Run, copied
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.config import Kind
from paritybit.reference.ops import OpCall
from paritybit.subjects.protocol import KeyLists, Keys
from torch import Tensor


@dataclass(frozen=True)
class WrongInput:
    """The elements of a static buffer that hold what they must not, with what is right.

    `held` and `right` are the whole part of the buffer that they lie in, one value after the other,
    None where that is not known.
    """

    elements: tuple[Element, ...]
    held: Tensor | None = None
    right: Tensor | None = None


Right = Mapping[str, WrongInput]
"""Static buffers that hold what they must not, by name."""


def nothing_wrong(observation: Observation) -> Right:
    """Return no element."""
    return {}


@dataclass(frozen=True)
class Judge:
    """Judges as one property does.

    `violated` says whether an observation violates it. `wrong_inputs` has the static inputs that
    hold what their contract does not accept: no other is blamed. `extra_run` is what the property
    asks to run besides, None for one that asks for nothing.
    """

    violated: Callable[[Observation], bool]
    wrong_inputs: Callable[[Observation], Right] = field(default=nothing_wrong)
    extra_run: Any = None


def keys_given(recorded: RecordedForward, run: Run) -> KeyLists | None:
    """Return the lists that the attention of a run was given; None if it ran none of a kind.

    They are those of the first layer of each kind, forward after forward of a draft.
    """
    layers, found = layers_by_address(recorded.pair.graph_pools), dict[Kind, list[OpCall]]()
    first: dict[Kind, int] = {}
    for call in run.calls:
        if call.name == "attention":
            cache = call.inputs[1].data_ptr()
            kind = layers[cache][2]
            if first.setdefault(kind, cache) == cache:
                found.setdefault(kind, []).append(call)
    if set(found) != set(Kind):
        return None
    masks = [
        call.inputs[7] for of_kind in found.values() for call in of_kind if len(call.inputs) > 7
    ]
    mask = next((mask for mask in masks if mask is not None), None)
    return KeyLists(_joined(found[Kind.FULL]), _joined(found[Kind.SWA]), mask)


def _joined(calls: Sequence[OpCall]) -> Keys:
    """Return the lists of the rows of some attention ops, one after the other."""
    begins, ends, slots, offset = [], [], [], 0
    for call in calls:
        _, _, begin, end, listed = call.inputs[:5]
        begins.append(begin + offset)
        ends.append(end + offset)
        slots.append(listed)
        offset += len(listed)
    starts = [call.inputs[8] if len(call.inputs) > 8 else None for call in calls]
    known = [start for start in starts if start is not None]
    joined = torch.cat(known) if len(known) == len(calls) else None
    return Keys(torch.cat(begins), torch.cat(ends), torch.cat(slots), joined)


def holds(recorded: RecordedForward, judge: Judge, run: Run, *, lists: bool = False) -> bool:
    """Whether the violated property holds of a further run of a forward.

    With `lists` the lists that it read by are those that its attention was given.
    """
    if run.failed is not None:
        return False
    observation = recorded.observation
    if observation is None:  # The step failed, and now it does not.
        return True
    forward = run.forward
    if forward is None:
        return False
    replay = forward.replay
    output = run.output if observation.graph.batch is not None else None
    return not judge.violated(
        replace(
            observation,
            graph=replace(observation.graph, after=run.storage, output=output),
            replay=replay,
            facts=recorded.engine.facts(replay) if replay is not None else None,
            keys=keys_given(recorded, run) if lists else forward.keys,
            static=copied(recorded.runner) if replay is not None else {},
            padding=forward.padding,
        )
    )
