"""token_trajectory: detects different tokens, the end-to-end symptom."""

import torch
from paritybit.harness.checks.property import Playing, Property, Violation
from paritybit.harness.lockstep.bits import first_index

ID = "token_trajectory"


def judge_schedule(playing: Playing) -> list[Violation]:
    """Compare all greedy tokens of both runs."""
    eager, graph = playing.eager_tokens, playing.graph_tokens
    if torch.equal(eager, graph):
        return []
    row, position = first_index(eager != graph)
    where = {
        "token_row": row,
        "position": position,
        "eager_token": int(eager[row, position]),
        "graph_token": int(graph[row, position]),
    }
    message = (
        f"token {position} of token row {row}: eager {where['eager_token']},"
        f" graph {where['graph_token']}"
    )
    return [Violation(ID, playing.place, message, where)]


TOKEN_TRAJECTORY = Property(
    id=ID,
    statement="greedy decoding produces the same tokens with graph replay as with eager execution",
    judge_schedule=judge_schedule,
)
