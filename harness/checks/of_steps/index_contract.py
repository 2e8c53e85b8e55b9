"""index_contract: an index dtype that drifted, a static buffer that moved."""

from harness.checks.property import Description, Property
from harness.explain.build_faults import dtype_cause
from harness.lockstep.observation import Observation
from subjects.protocol import Offer, ReplayFacts


def contract_breaches(facts: ReplayFacts) -> list[str]:
    """List what is not as it was captured, or of a dtype that is neither the pool's nor listed."""
    captured, now = facts.captured_buffers, facts.buffers
    breaches = [
        f"static buffer {name} was captured as {captured.get(name)} and is now {now.get(name)}"
        for name in dict.fromkeys([*captured, *now])
        if captured.get(name) != now.get(name)
    ]
    locations = facts.locations
    if locations is not None:
        right = {locations.translated, locations.store or locations.translated}
        if {locations.handed} != right:
            store = f" and its store reads {locations.store}" if locations.store else ""
            breaches.append(
                f"out_cache_loc_swa is {locations.handed}, but the pool translates to"
                f" {locations.translated}{store}"
            )
    breaches += [
        f"{name} is converted on copy from {source} to {destination}, which is not listed"
        for name, source, destination in facts.conversions
    ]
    return breaches


def flag(observation: Observation) -> bool:
    """Whether the replay broke its contract."""
    return observation.facts is not None and bool(contract_breaches(observation.facts))


def describe(observation: Observation) -> Description:
    """List the breaches."""
    assert observation.facts is not None
    breaches = contract_breaches(observation.facts)
    return "; ".join(breaches), {"breaches": breaches}


INDEX_CONTRACT = Property(
    id="index_contract",
    statement="static buffers are what was captured; dtypes are the pool's and listed",
    needs=frozenset({Offer.STATIC_INPUTS}),
    flag=flag,
    describe=describe,
    cause=dtype_cause,
)
