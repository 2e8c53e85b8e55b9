"""live_inputs: detects static inputs that are not refreshed, and tails that are not reset."""

from collections.abc import Iterator

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.checks.static_inputs import (
    COMPILED,
    CONVERTED,
    FILLS,
    METADATA,
    OUTPUTS,
    TOKEN_COUNTS,
    InputPart,
    parts,
    required_room,
)
from paritybit.harness.lockstep.bits import first_index, unequal
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import Mode
from paritybit.reference.config import Role
from paritybit.subjects.protocol import ReplayResult
from paritybit.subjects.runners import RUNNERS


def judge(observation: Observation) -> Description | None:
    """Name an input that is wrong as a whole, or the first wrong element."""
    replay = observation.replay
    if replay is None:
        return None
    odd = list(odd_inputs(observation, replay))
    if odd:
        return f"{replay.runner}: {odd[0]}", {"runner": replay.runner, "inputs": odd}
    for part in parts(observation):
        found = _wrong_part(replay, part)
        if found is not None:
            return found
    return None


def odd_inputs(observation: Observation, replay: ReplayResult) -> Iterator[str]:
    """Yield messages about unexpected, missing and too small static buffers, and wrong dtypes."""
    static, fills, runner = observation.static, FILLS[replay.runner], RUNNERS[replay.runner]
    there = {name for name in static if not name.startswith(OUTPUTS)} - METADATA.keys()
    counted = runner.captures and runner.mode in {Mode.DECODE, Mode.TARGET_VERIFY}
    known = {*fills, *(TOKEN_COUNTS if counted else ())}
    for name in sorted(there - known):
        yield f"the expected value of static input {name} is unknown"
    for name in sorted(known - there - {"out_cache_loc_swa"}):
        yield f"static input {name} does not exist"
    converted = CONVERTED if runner.captures else COMPILED
    for name, dtype in sorted({**METADATA, **converted}.items()):
        if name in static and static[name].dtype != dtype:
            yield f"static buffer {name} is {static[name].dtype}; the engine needs {dtype}"
    if not runner.captures:
        return
    config = observation.layout.configs[Role.TARGET]
    for name, needed in required_room(runner.mode, replay.bucket, config).items():
        if name in static and static[name].numel() < needed:
            yield (
                f"static buffer {name} has room for {static[name].numel()} elements; a bucket of "
                f"{replay.bucket} can need {needed}"
            )


def _wrong_part(replay: ReplayResult, part: InputPart) -> Description | None:
    current, right = part.current, part.right
    where = {"runner": replay.runner, "input": part.name, "live": part.live}
    if current.shape != right.shape:
        shapes = {"shape": list(current.shape), "right_shape": list(right.shape)}
        room = f"has room for {shapes['shape']}; the batch needs {shapes['right_shape']}"
        return f"{replay.runner}: {part.name} {room}", where | shapes
    right = right.to(current.device, current.dtype)
    wrong = unequal(current, right)
    if not wrong.any():
        return None
    place = first_index(wrong)
    element = [part.first + place[0], *place[1:]]
    value, expected = current[place].item(), right[place].item()
    index = ", ".join(map(str, element))
    needs = "the batch needs" if part.live else "padding needs"
    return (
        f"{replay.runner}: {part.name}[{index}] is {value}; {needs} {expected}",
        where | {"element": element, "value": str(value), "right": str(expected)},
    )


LIVE_INPUTS = Property(
    id="live_inputs",
    statement=(
        "the live part of each static input matches the batch, and the padded part holds its "
        "fill value"
    ),
    judge=judge,
)
