"""index_contract: detects changed index dtypes and static buffers that moved."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation
from paritybit.subjects.protocol import BufferFacts, ReplayFacts


def contract_breaches(facts: ReplayFacts) -> list[str]:
    """List the buffers and outputs that changed since the capture, and unexpected dtypes."""
    captured, now = facts.captured_buffers, facts.buffers
    # Comparing whole dictionaries is faster than searching for differences in them.
    names = () if captured == now else dict.fromkeys([*captured, *now])
    breaches = [
        f"static buffer {name} {_moved(captured.get(name), now.get(name))}"
        for name in names
        if captured.get(name) != now.get(name)
    ]
    locations = facts.locations
    if locations is not None and {locations.handed} != {locations.translated, locations.store}:
        breaches.append(
            f"out_cache_loc_swa is {locations.handed}, but the pool translates to "
            f"{locations.translated}, and its store reads {locations.store}"
        )
    breaches += [
        f"copying {name} converts {source} to {destination}, which is not on the list of "
        "allowed conversions"
        for name, source, destination in facts.conversions
    ]
    return breaches


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
    breaches = contract_breaches(observation.facts) if observation.facts is not None else []
    return ("; ".join(breaches), {"breaches": breaches}) if breaches else None


INDEX_CONTRACT = Property(
    id="index_contract",
    statement=(
        "static buffers are still the captured tensors, and every dtype conversion is on the "
        "list of allowed ones"
    ),
    judge=judge,
)
