"""next_tokens: detects tokens that go to the wrong request."""

from collections.abc import Iterator

import numpy as np
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.host_arrays import on_device
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import any_set
from paritybit.harness.lockstep.observation import Observation, Snapshot
from paritybit.reference.allocator import Ownership
from paritybit.reference.batch import Mode
from paritybit.reference.speculative import accepted_path
from torch import Tensor

ID = "next_tokens"

Said = tuple[dict[int, int], Tensor, Tensor]
"""The tokens that a forward implies: how many each request has afterwards, and which.

The first tensor has flat places in the table of tokens, the second their required values, both
int64 [N].
"""


def said(world: Snapshot, columns: int) -> Said | None:
    """Return the tokens that a forward's logits imply for its requests, or None.

    A request gets its most likely next token if all its known tokens are in the pool. After a
    verify it gets the accepted path and the token after it.
    """
    batch, output = world.batch, world.output
    if batch is None or output is None or batch.mode.drafts or batch.mode is Mode.DRAFT_EXTEND:
        return None
    greedy = output["logits"].argmax(-1)
    by_row = {owner.row: owner for owner in world.owners}
    known, cells, tokens = dict[int, int](), list[int](), list[int]()
    verified = greedy.tolist() if batch.mode is Mode.TARGET_VERIFY else []
    for row, span in enumerate(batch.spans):
        owner = by_row[span.row]
        cell, known[owner.serial] = owner.token_row * columns, owner.known
        if verified:
            drafts = len(span.tree)
            of_span = verified[row * drafts : (row + 1) * drafts]
            path = accepted_path(span.tree, of_span, span.accept)
            tokens += [*(span.tree[node][0] for node in path), of_span[path[-1]]]
            known[owner.serial] = span.begin + len(path) + 1
            cells += range(cell + span.begin, cell + span.begin + len(path) + 1)
        elif span.end == owner.known < columns:
            tokens.append(row)
            known[owner.serial] += 1
            cells.append(cell + span.end)
    places, right = on_device(np.array([cells, tokens], dtype=np.int64), greedy.device)
    return known, places, right if verified else greedy[right]


def judged(observation: Observation) -> Iterator[tuple[str, Ownership, Said]]:
    """Yield the name of each world, its owners after the step, and the implied tokens."""
    for name, world in (("graph", observation.graph), ("eager", observation.eager)):
        end: Ownership = getattr(observation.end, name)
        found = said(world, end.tokens.shape[1])
        if found is not None:
            yield name, end, found


def miscounted(end: Ownership, known: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield each request with a wrong number of tokens, that number, and the right one."""
    for owner in end.holders:
        right = known.get(owner.serial, owner.known)
        if owner.known != right:
            yield owner.serial, owner.known, right


def flag(observation: Observation) -> Flag:
    """Whether the tokens of any request of the step differ from those that its logits imply."""
    raised: Tensor | None = None
    for _, end, (known, cells, right) in judged(observation):
        if any(miscounted(end, known)):
            return True
        wrong = any_set(end.tokens.view(-1).take(cells) != right)
        raised = wrong if raised is None else raised | wrong
    return False if raised is None else raised


def wrongs(observation: Observation) -> Iterator[tuple[str, int, int | None, int, int]]:
    """Yield world, request, column, value and right value for each error.

    If the column is None, the values are numbers of tokens.
    """
    for name, end, (known, cells, right) in judged(observation):
        for serial, held, expected in miscounted(end, known):
            yield name, serial, None, held, expected
        by_row = {owner.token_row: owner.serial for owner in end.holders}
        tokens = end.tokens.view(-1).take(cells)
        for cell, token, expected in zip(
            cells.tolist(), tokens.tolist(), right.tolist(), strict=True
        ):
            row, column = divmod(cell, end.tokens.shape[1])
            if token != expected:
                yield name, by_row[row], column, token, expected


def named(serial: int, column: int | None) -> str:
    """Name a token of a request, or its number of tokens."""
    what = "the number of tokens" if column is None else f"token {column}"
    return f"{what} of request {serial}"


def describe(observation: Observation) -> Description:
    """Name the first wrong token, or the first request with a wrong number of tokens."""
    name, serial, column, held, right = next(wrongs(observation))
    words = f"in the {name} run, {named(serial, column)} is {held}; its logits say {right}"
    return words, {"world": name, "owner": f"request {serial}", "held": held, "right": right}


NEXT_TOKENS = Property(
    id=ID,
    statement="each request gets the tokens that its own logits say, behind those that it has",
    flag=flag,
    describe=describe,
)
