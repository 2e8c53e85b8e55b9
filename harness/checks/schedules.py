"""Checks of a whole schedule: played once more, and against the dense oracle."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.checks.differences import first_index
from harness.lockstep.bits import bits
from harness.lockstep.pair import Pair
from harness.lockstep.scheduler import Request, Scheduler
from harness.lockstep.violation import Violation
from reference.batch import TRACK_INTERVAL
from reference.oracle import dense_draft_logits, dense_logits

DENSE_BOUND = {torch.float32: 2e-4, torch.bfloat16: 0.25}
"""Largest |eager - dense| / (1 + |dense|) of a logit: rounding of some tens of sums a layer."""

DENSE_REQUESTS = 3
"""How many requests, the longest first, are held against the oracle at a schedule's end."""


@dataclass(frozen=True)
class Playback:
    """The bits one playing of a schedule left: every step's live outputs, and both storages."""

    outputs: tuple[Tensor, ...]
    storages: tuple[Tensor, Tensor]


def token_trajectory(pair: Pair, step: int) -> list[Violation]:
    """Compare the greedy tokens of all generations."""
    eager, graph = pair.eager.tokens, pair.graph.tokens
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
    return [Violation("token_trajectory", step, message, where)]


def determinism(pair: Pair, first: Playback, second: Playback, step: int) -> list[Violation]:
    """Compare two playings of one schedule: live rows, and every slot but slot 0."""
    if len(first.outputs) != len(second.outputs):
        return [Violation("determinism", step, "the schedule did another number of forwards")]
    found = []
    for place, (left, right) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        if not torch.equal(bits(left), bits(right)):
            message = f"output {place} of the schedule had other bits when it was played again"
            found.append(Violation("determinism", step, message, {"output": place}))
            break
    for world, left, right in zip(("eager", "graph"), first.storages, second.storages, strict=True):
        if ((bits(left) != bits(right)) & pair.compared).any():
            message = f"the {world} world's KV had other bits when the schedule was played again"
            found.append(Violation("determinism", step, message, {"world": world}))
    return found


@dataclass(frozen=True)
class Sampled:
    """A request as it last sampled: its tokens in the pool, and the eager logits [vocab].

    Of a draft model, the tokens run one ahead and `hidden_states` [L, H] go with them.
    """

    serial: int
    tokens: Tensor
    logits: Tensor
    tracked: Tensor
    mrope_delta: int
    encoder_len: int
    hidden_states: Tensor | None = None

    @classmethod
    def of(cls, world: Scheduler, request: Request, logits: Tensor, *, draft: bool) -> "Sampled":
        """Return what `request` is after the target, or its draft, gave `logits`."""
        row, length = request.token_row, request.length
        position = torch.arange(length)
        ends_interval = position % TRACK_INTERVAL == TRACK_INTERVAL - 1
        return cls(
            request.serial,
            world.tokens[row, draft : length + draft].clone(),
            logits,
            torch.where(ends_interval & request.tracked, request.track_index, -1),
            request.mrope_delta,
            request.encoder_len,
            world.hidden_states[row, :length].clone() if draft else None,
        )


def dense_agreement(pair: Pair, latest: Iterable[Sampled], step: int) -> list[Violation]:
    """Hold the eager world's latest logits of the longest requests against the dense oracle."""
    bound = DENSE_BOUND[pair.model.dtype]
    found = []
    for request in longest(latest):
        dense = oracle_logits(pair, request)
        eager = request.logits.cpu().double()
        error = float(((eager - dense).abs() / (1 + dense.abs())).max())
        if not error <= bound:
            what = "logits" if request.hidden_states is None else "draft logits"
            message = (
                f"request {request.serial} of {len(request.tokens)} tokens: eager {what} are off"
                f" the dense oracle by {error:.3g}; the bound is {bound:g}"
            )
            where = {"owner": f"request {request.serial}", "error": error, "bound": bound}
            found.append(Violation("dense_agreement", step, message, where))
    return found


def longest(latest: Iterable[Sampled]) -> list[Sampled]:
    """Return what is held against the oracle: of either model, the longest requests first."""
    ranked = sorted(latest, key=lambda each: (-len(each.tokens), each.serial))
    of_target = [each for each in ranked if each.hidden_states is None]
    of_draft = [each for each in ranked if each.hidden_states is not None]
    return of_target[:DENSE_REQUESTS] + of_draft[:DENSE_REQUESTS]


def oracle_logits(pair: Pair, request: Sampled) -> Tensor:
    """Return the oracle's logits, float64 [vocab], after the request's last token in the pool."""
    tokens = request.tokens.cpu()
    if request.hidden_states is not None:
        return dense_draft_logits(pair.draft, tokens, request.hidden_states)[-1]
    logits = dense_logits(
        pair.model, tokens, request.mrope_delta, request.tracked, request.encoder_len
    )
    return logits[-1]
