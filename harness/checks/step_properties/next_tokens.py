"""next_tokens: detects tokens that are lost or go to the wrong request."""

from collections.abc import Iterator

import torch
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import first_index
from paritybit.harness.lockstep.observation import Observation, Snapshot, StepEnd
from paritybit.reference.allocator import Ownership
from paritybit.reference.batch import Mode
from paritybit.reference.speculative import accepted_path


def implied(side: Snapshot, columns: int) -> dict[int, tuple[int, list[int]]] | None:
    """Return, per request of a forward, the first column that its logits determine, and the tokens.

    A request gets its most likely next token if all its known tokens are in the pool. After a
    verify it gets the accepted path and the token after it. Returns None for a forward of a draft
    model, and for an output with too few rows, which logits_parity reports.
    """
    batch, output = side.batch, side.output
    if batch is None or output is None or batch.mode.drafts or batch.mode is Mode.DRAFT_EXTEND:
        return None
    greedy = output["logits"].argmax(-1).tolist()
    verifies = batch.mode is Mode.TARGET_VERIFY
    if len(greedy) < sum(len(span.tree) if verifies else 1 for span in batch.spans):
        return None
    by_row = {owner.row: owner for owner in side.owners}
    found = {}
    for row, span in enumerate(batch.spans):
        owner = by_row[span.row]
        if verifies:
            drafts = len(span.tree)
            of_span = greedy[row * drafts : (row + 1) * drafts]
            path = accepted_path(span.tree, of_span, span.accept)
            tokens = [*(span.tree[node][0] for node in path), of_span[path[-1]]]
            found[owner.serial] = span.begin, tokens
        elif span.end == owner.known < columns:
            found[owner.serial] = span.end, [greedy[row]]
    return found


def wrong(run: str, side: Snapshot, end: Ownership) -> Iterator[Description]:
    """Yield each request with a wrong number of tokens, and each wrong token."""
    right = implied(side, end.tokens.shape[1])
    if right is None:
        return
    known = {owner.serial: owner.known for owner in side.owners}
    known |= {serial: first + len(tokens) for serial, (first, tokens) in right.items()}
    for owner in end.holders:
        expected = known.get(owner.serial, owner.known)
        if owner.known != expected:
            yield _describe(run, owner.serial, "the number of tokens", owner.known, expected)
        first, tokens = right.get(owner.serial, (0, []))
        row = end.tokens[owner.token_row, first : first + len(tokens)].tolist()
        for number, (token, implied_token) in enumerate(zip(row, tokens, strict=True)):
            if token != implied_token:
                what = f"token {first + number}"
                yield _describe(run, owner.serial, what, token, implied_token)


def _describe(run: str, serial: int, what: str, value: int, right: int) -> Description:
    message = f"in the {run} run, {what} of request {serial} is {value}; its logits imply {right}"
    return message, {"run": run, "owner": f"request {serial}", "value": value, "right": right}


def differing(end: StepEnd) -> Iterator[Description]:
    """Yield each request whose tokens differ between the runs, with the first such token."""
    eager, graph = end.eager.tokens, end.graph.tokens
    if torch.equal(eager, graph):
        return
    for owner in end.graph.holders:
        left, right = (one[owner.token_row, : owner.known] for one in (eager, graph))
        if not torch.equal(left, right):
            (position,) = first_index(left != right)
            values = {"value": int(right[position]), "right": int(left[position])}
            message = (
                f"token {position} of request {owner.serial}: eager {values['right']}, graph "
                f"{values['value']}"
            )
            yield message, {"owner": f"request {owner.serial}", "position": position, **values}


def judge(observation: Observation) -> Description | None:
    """Name the first wrong token, or the first request with a wrong number of tokens."""
    end = observation.end
    found = (
        *wrong("graph", observation.graph, end.graph),
        *wrong("eager", observation.eager, end.eager),
        *differing(end),
    )
    return next(iter(found), None)


NEXT_TOKENS = Property(
    id="next_tokens",
    statement=(
        "each request gets the tokens that its own logits imply, and has the same tokens in both "
        "runs"
    ),
    judge=judge,
)
