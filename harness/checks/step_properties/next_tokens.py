"""next_tokens: detects tokens that are lost or go to the wrong request."""

import torch
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import first_index
from paritybit.harness.lockstep.observation import Observation


def judge(observation: Observation) -> Description | None:
    """Name the first request with other tokens than in the eager run, and the first of them."""
    eager, graph = observation.end.eager.tokens, observation.end.graph.tokens
    if torch.equal(eager, graph):
        return None
    for owner in observation.end.graph.holders:
        left, right = (one[owner.token_row, : owner.known] for one in (eager, graph))
        if not torch.equal(left, right):
            (position,) = first_index(left != right)
            values = {"eager": int(left[position]), "graph": int(right[position])}
            message = (
                f"token {position} of request {owner.serial}: eager {values['eager']}, graph "
                f"{values['graph']}"
            )
            return message, {"owner": f"request {owner.serial}", "position": position, **values}
    return None


NEXT_TOKENS = Property(
    id="next_tokens",
    statement="each request has the same tokens with graph replay as with eager execution",
    judge=judge,
)
