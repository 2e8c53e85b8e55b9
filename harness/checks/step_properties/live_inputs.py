"""live_inputs: detects static inputs that are not refreshed, and tails that are not reset."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.unequal import Unequal, as_dtype
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.checks.static_inputs import (
    INPUTS,
    METADATA,
    OUTPUTS,
    ROOM,
    Expected,
    ExpectedInputs,
)
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.config import Role
from paritybit.subjects.protocol import Replay
from torch import Tensor


class Part(NamedTuple):
    """A part of a static input from element or row `first` on, and its required content."""

    name: str
    live: bool
    first: int
    held: Tensor
    right: Tensor


def expected_inputs(replay: Replay) -> ExpectedInputs:
    """Return the expected inputs of a replay's runner. Raises KeyError without an entry."""
    if replay.runner not in INPUTS:
        raise KeyError(
            f"{replay.runner} has no entry in harness/checks/static_inputs.py, so the "
            "expected values of its static inputs are unknown; add an entry"
        )
    return INPUTS[replay.runner]


def odd_inputs(observation: Observation) -> list[str]:
    """List messages about unexpected, missing and too small static inputs, and wrong dtypes.

    Key lists that are too small are listed too.
    """
    replay = observation.replay
    if replay is None:
        return []
    expected = expected_inputs(replay)
    there = {name for name in observation.static if not name.startswith(OUTPUTS)}
    there -= METADATA.keys()
    counts = {"num_token_non_padded", "global_num_tokens"} if expected.bucket_tokens else set()
    needed = {name for name, row in expected.rows.items() if not row.swa} | counts
    known = needed | set(expected.rows)
    return [
        *(
            f"the expected value of static input {name} is unknown"
            for name in sorted(there - known)
        ),
        *(f"static input {name} does not exist" for name in sorted(needed - there)),
        *(
            f"static buffer {name} is {observation.static[name].dtype}; the engine needs {dtype}"
            for name, dtype in sorted({**METADATA, **expected.dtypes}.items())
            if name in observation.static and observation.static[name].dtype != dtype
        ),
        *_too_small(observation, replay),
    ]


def _too_small(observation: Observation, replay: Replay) -> Iterator[str]:
    """Yield a message for each static buffer that is too small for a bucket of longest requests.

    The pools have too few slots for such a batch, so no replay can show it.
    """
    config = observation.layout.configs[Role.TARGET]
    for name, room in ROOM.get(replay.runner, {}).items():
        buffer = observation.static.get(name)
        needed = room.of(config, replay.bucket)
        if buffer is not None and buffer.numel() < needed:
            yield (
                f"static buffer {name} has room for {buffer.numel()} elements; a bucket "
                f"of {replay.bucket} can need {needed}"
            )


def parts(observation: Observation) -> Iterator[Part]:
    """Yield the parts of a replay's static inputs whose required content is known."""
    replay = observation.replay
    if replay is None:
        return
    expected = expected_inputs(replay)
    if expected.only_padded and not replay.padded:
        return
    for name, row in expected.rows.items():
        if name in observation.static:
            yield from _parts_of(observation, name, row, replay.bucket)
    if expected.bucket_tokens is not None:
        batch = observation.eager.batch
        counts = {
            "num_token_non_padded": batch.live_tokens if batch is not None else 0,
            "global_num_tokens": replay.bucket * expected.bucket_tokens,
        }
        for name, count in counts.items():
            if name in observation.static:
                held = observation.static[name]
                yield Part(name, True, 0, held, filled(count, held.shape, held.dtype, held.device))


def _parts_of(observation: Observation, name: str, row: Expected, bucket: int) -> Iterator[Part]:
    """Yield the live part of a static input, if it is ever populated, and its tail, if reset."""
    buffer, batch, live = observation.static[name], observation.eager.batch, 0
    axis = -1 if row.wide else 0
    if batch is not None and row.live is not None:
        right = row.live(batch, observation)
        live = right.shape[axis]
        held = buffer[..., :live] if row.wide else buffer[:live]
        yield Part(name, True, 0, held, right)
    padded = row.of(observation.layout.configs[Role.DRAFT], bucket) - live
    if row.fill is not None and padded > 0:
        held = buffer[..., live : live + padded] if row.wide else buffer[live : live + padded]
        right = filled(row.fill, held.shape, buffer.dtype, buffer.device)
        yield Part(name, False, live, held, right)


@cache
def filled(value: int, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a cached read-only tensor filled with a value."""
    return torch.full(shape, value, dtype=dtype, device=device)


def flag(observation: Observation) -> Flag:
    """Whether any part of a static input has wrong bits."""
    if odd_inputs(observation):
        return True
    device = observation.compared.device
    on_host, on_device = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
    for part in parts(observation):
        if part.held.shape != part.right.shape:
            return True
        pairs = on_device if part.held.device == device else on_host
        pairs.append((part.held, part.right))
    if on_host and Unequal(on_host):
        return True
    return Unequal(on_device) if on_device else False


def as_held(part: Part) -> Tensor:
    """Return the required content of a part in the dtype of the input."""
    return as_dtype(part.right, part.held.dtype)


def describe(observation: Observation) -> Description:
    """Name the first wrong element, or an input that is wrong as a whole."""
    odd = odd_inputs(observation)
    replay = observation.replay
    assert replay is not None
    if odd:
        return f"{replay.runner}: {odd[0]}", {"runner": replay.runner, "inputs": odd}
    for part in parts(observation):
        where = {"runner": replay.runner, "input": part.name, "live": part.live}
        if part.held.shape != part.right.shape:
            shapes = {"shape": list(part.held.shape), "right_shape": list(part.right.shape)}
            words = f"has room for {shapes['shape']}; the batch needs {shapes['right_shape']}"
            return f"{replay.runner}: {part.name} {words}", where | shapes
        held, right = part.held, as_held(part)
        wrong = bits(held) != bits(right)
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            element = [part.first + place[0], *place[1:]]
            if part.name == "mrope_positions":
                element = [place[0], part.first + place[1]]
            values = {"held": held[place].item(), "right": right[place].item()}
            which = "the batch needs" if part.live else "padding needs"
            index = ", ".join(map(str, element))
            return (
                f"{replay.runner}: {part.name}[{index}] is {values['held']}; {which} "
                f"{values['right']}"
            ), where | {"element": element, **{k: str(v) for k, v in values.items()}}
    raise ValueError("every static input holds what it must")


LIVE_INPUTS = Property(
    id="live_inputs",
    statement=(
        "the live part of each static input matches the batch, and the padded part holds its "
        "fill value"
    ),
    flag=flag,
    describe=describe,
)
