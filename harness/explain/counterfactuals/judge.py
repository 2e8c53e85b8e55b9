"""How the violated property judges a forward that was run again with one change."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import torch
from paritybit.harness.explain.counterfactuals.elements import Element
from paritybit.harness.explain.provenance import layer_of
from paritybit.harness.explain.recorded import RecordedForward, Run, copied
from paritybit.harness.lockstep.bits import bits, form
from paritybit.harness.lockstep.fresh_run import FreshRun
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.config import Kind
from paritybit.reference.model import Output
from paritybit.reference.ops import OpCall
from paritybit.subjects.protocol import KeyLists, Keys, Replay
from torch import Tensor


@dataclass(frozen=True)
class WrongInput:
    """Elements of a static buffer with wrong values, and the right values.

    `held` and `right` are the whole part of the buffer around them, flat. None if that is not
    known.
    """

    elements: tuple[Element, ...]
    held: Tensor | None = None
    right: Tensor | None = None


Right = Mapping[str, WrongInput]
"""Static buffers with wrong values, by name."""


def together(found: Right) -> Iterator[WrongInput]:
    """Yield all wrong static inputs, or lists, as one, if there are several."""
    if len(found) > 1:
        yield WrongInput(tuple(one for wrong in found.values() for one in wrong.elements))


@dataclass(frozen=True)
class Judge:
    """Judges as one property does.

    - `violated`: whether an observation violates it.
    - `wrong_inputs`: the static inputs with values that their contract rejects. Others are not
      blamed.
    - `extra_run`: the further run that the property needs, or None.
    """

    violated: Callable[[Observation], bool]
    wrong_inputs: Callable[[Observation], Right]
    extra_run: FreshRun | None


def agrees(recorded: RecordedForward, run: Run, storage: Tensor, output: Output | None) -> bool:
    """Whether a run left KV as `storage`, except for reserved slots, and gave `output`, if any."""
    different = (bits(run.storage) != bits(storage)) & recorded.pair.compared
    if output is None:
        return not different.any()
    return (
        not different.any()
        and form(run.output) == form(output)
        and all(torch.equal(bits(run.output[name]), bits(output[name])) for name in output)
    )


def inputs_seen(recorded: RecordedForward) -> Observation:
    """Return the part of an observation of a run that determines its wrong inputs."""
    batch, runner, bucket = recorded.planned.eager.batch, recorded.runner, recorded.bucket
    replay = None
    if runner is not None and bucket is not None:
        padded = runner.padded(recorded.planned.graph.batch, bucket)
        replay = Replay(runner.name, bucket, recorded.live_size or 0, padded, {}, 0, {}, {})
    extends = batch is not None and batch.extends
    seen = SimpleNamespace(
        layout=recorded.pair.layout,
        replay=replay,
        static=recorded.static,
        eager=SimpleNamespace(batch=batch, mapping=recorded.eager_tables[1]),
        payload=recorded.payload if extends else None,
    )
    return cast(Observation, seen)


def keys_given(recorded: RecordedForward, run: Run) -> KeyLists | None:
    """Return the lists that the attention ops of a run were given, or None if a kind did not run.

    They are those of the first layer of each kind, one forward of a draft after another.
    """
    pools, found = recorded.pair.graph_pools, dict[Kind, list[OpCall]]()
    first: dict[Kind, int] = {}
    for call in run.calls:
        if call.name == "attention":
            cache = call.inputs[1].data_ptr()
            kind = layer_of(call.inputs[1], pools)[2]
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
    """Return the lists of the rows of some attention ops, one after another."""
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
    """Whether the violated property holds for a forward that was run again.

    With `lists`, the key lists are those that its attention ops were given. For a step that failed,
    the property holds if the graph world equals the eager world.
    """
    observation, forward = recorded.observation, run.forward
    if run.failed is not None or forward is None:
        return False
    if observation is None:
        return agrees(recorded, run, recorded.eager_storage, recorded.eager_output)
    if recorded.show is not None:
        extra = {**observation.extra, **recorded.show(forward)}
        return not judge.violated(replace(observation, extra=extra))
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
        )
    )
