"""index_contract: detects changed index dtypes and static buffers that moved."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.checks.static_inputs import CONVERTED, parts
from paritybit.harness.lockstep.observation import Observation
from paritybit.subjects.protocol import BufferFacts, ReplayFacts


def contract_breaches(facts: ReplayFacts) -> list[str]:
    """List the static buffers that changed since the capture."""
    captured, now = facts.captured_buffers, facts.buffers
    # Comparing whole dictionaries is faster than searching for differences in them.
    names = () if captured == now else dict.fromkeys([*captured, *now])
    return [
        f"static buffer {name} {_moved(captured.get(name), now.get(name))}"
        for name in names
        if captured.get(name) != now.get(name)
    ]


def converted_inputs(observation: Observation) -> list[str]:
    """List the static inputs whose dtype is not that of their values in the batch."""
    return [
        f"static input {part.name} is {part.current.dtype}, but its values are {part.right.dtype}"
        for part in parts(observation)
        if part.live and part.name not in CONVERTED and part.current.dtype != part.right.dtype
    ]


def _moved(captured: BufferFacts | None, now: BufferFacts | None) -> str:
    """Describe how a buffer differs from the captured one, without addresses."""
    if captured is None or now is None:
        return "did not exist at the capture" if captured is None else "no longer exists"
    before, after = (f"{one.dtype} {list(one.shape)} on {one.device}" for one in (captured, now))
    if before == after:
        return f"is not the tensor that was captured; both are {before}"
    return f"was captured as {before} and is now {after}"


def judge(observation: Observation) -> Description | None:
    """List the breaches of the contract."""
    if observation.facts is None:
        return None
    breaches = [*contract_breaches(observation.facts), *converted_inputs(observation)]
    return ("; ".join(breaches), {"breaches": breaches}) if breaches else None


INDEX_CONTRACT = Property(
    id="index_contract",
    statement=(
        "static buffers are still the captured tensors, and a copy into one converts no dtype but "
        "those of lengths"
    ),
    judge=judge,
)
