"""Checks of a whole schedule: played once more, and against the dense oracle."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.arms import Arms
from harness.bits import bits
from harness.localise import first_index
from harness.violation import Violation
from harness.world import Request, World
from reference.batch import TRACK_INTERVAL
from reference.oracle import dense_logits

DENSE_BOUND = {torch.float32: 2e-4, torch.bfloat16: 0.25}
"""Largest |eager - dense| / (1 + |dense|) of a logit: rounding of some tens of sums a layer."""

DENSE_REQUESTS = 3
"""How many requests, the longest first, are held against the oracle at a schedule's end."""


@dataclass(frozen=True)
class Playback:
    """The bits one playing of a schedule left: every step's live logits, and both storages."""

    logits: tuple[Tensor, ...]
    storages: tuple[Tensor, Tensor]


def token_trajectory(arms: Arms, step: int) -> list[Violation]:
    """Compare the greedy tokens of all generations."""
    eager, graph = arms.eager.tokens, arms.graph.tokens
    if torch.equal(eager, graph):
        return []
    row, position = first_index(eager != graph)
    where = {
        "token_row": row,
        "position": position,
        "eager_token": int(eager[row, position]),
        "graph_token": int(graph[row, position]),
    }
    told = (
        f"token {position} of token row {row}: eager {where['eager_token']},"
        f" graph {where['graph_token']}"
    )
    return [Violation("token_trajectory", step, told, where)]


def determinism(arms: Arms, first: Playback, second: Playback, step: int) -> list[Violation]:
    """Compare two playings of one schedule: live rows, and every slot but slot 0."""
    if len(first.logits) != len(second.logits):
        return [Violation("determinism", step, "the schedule did another number of forwards")]
    found = []
    for place, (left, right) in enumerate(zip(first.logits, second.logits, strict=True)):
        if not torch.equal(bits(left), bits(right)):
            told = f"logits {place} of the schedule had other bits when it was played again"
            found.append(Violation("determinism", step, told, {"logits": place}))
            break
    for world, left, right in zip(("eager", "graph"), first.storages, second.storages, strict=True):
        if ((bits(left) != bits(right)) & arms.compared).any():
            told = f"the {world} world's KV had other bits when the schedule was played again"
            found.append(Violation("determinism", step, told, {"world": world}))
    return found


@dataclass(frozen=True)
class Sampled:
    """A request as it last sampled: its tokens in the pool, and the eager logits [vocab]."""

    serial: int
    tokens: Tensor
    logits: Tensor
    mrope_delta: int
    track_index: int
    encoder_len: int

    @classmethod
    def of(cls, world: World, request: Request, logits: Tensor) -> "Sampled":
        """Return what `request` is after it sampled from `logits`."""
        return cls(
            request.serial,
            world.tokens[request.token_row, : request.length].clone(),
            logits,
            request.mrope_delta,
            request.track_index,
            request.encoder_len,
        )


def dense_agreement(arms: Arms, latest: Iterable[Sampled], step: int) -> list[Violation]:
    """Hold the eager world's latest logits of the longest requests against the dense oracle."""
    bound = DENSE_BOUND[arms.model.dtype]
    found = []
    for request in longest(latest):
        dense = oracle_logits(arms, request)
        eager = request.logits.cpu().double()
        error = float(((eager - dense).abs() / (1 + dense.abs())).max())
        if not error <= bound:
            told = (
                f"request {request.serial} of {len(request.tokens)} tokens: eager logits are off"
                f" the dense oracle by {error:.3g}; the bound is {bound:g}"
            )
            where = {"owner": f"request {request.serial}", "error": error, "bound": bound}
            found.append(Violation("dense_agreement", step, told, where))
    return found


def longest(latest: Iterable[Sampled]) -> list[Sampled]:
    """Return the requests that are held against the oracle, the longest first."""
    return sorted(latest, key=lambda each: (-len(each.tokens), each.serial))[:DENSE_REQUESTS]


def oracle_logits(arms: Arms, request: Sampled) -> Tensor:
    """Return the oracle's logits, float64 [vocab], after the request's last token in the pool."""
    position = torch.arange(len(request.tokens))
    tracked = torch.where(position % TRACK_INTERVAL == TRACK_INTERVAL - 1, request.track_index, -1)
    return dense_logits(
        arms.model, request.tokens.cpu(), request.mrope_delta, tracked, request.encoder_len
    )[-1]
