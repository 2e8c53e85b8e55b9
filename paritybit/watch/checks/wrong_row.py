"""Wrong row: a row of a batch has another value than the request of the row asked for.

A row has, for example, a temperature, an adapter, a row of logits and a number of tokens. For each
row, an attention layer also stores KV, and returns something.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from paritybit.watch.facts import RowValues
from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, RowsGiven
from paritybit.watch.stacks import described


def judge(rows: RowsGiven) -> Iterable[Finding]:
    """Yield a finding for each kind of value that is wrong in a row."""
    for values in rows.values:
        if values.held.shape != values.right.shape:
            shapes = list(values.held.shape), list(values.right.shape)
            yield finding(rows, values, None, f"has {shapes[0]} in the batch, not {shapes[1]}")
            continue
        wrong = differing(values).nonzero().flatten().tolist()
        if wrong:
            yield finding(rows, values, wrong[0], differs(values, wrong[0]))


def differing(values: RowValues) -> Tensor:
    """Return which rows have a wrong value, bool [rows]."""
    if torch.equal(values.held, values.right):
        return torch.zeros(len(values.held), dtype=torch.bool)
    return apart(values, values.held, values.right)


def apart(values: RowValues, held: Tensor, right: Tensor) -> Tensor:
    """Return which rows of two tensors differ by more than rounding, bool [rows]."""
    held, right = held.reshape(len(right), -1), right.reshape(len(right), -1)
    alike = (held == right) | (held.isnan() & right.isnan())
    if values.within:
        size = right.abs().masked_fill(~right.isfinite(), 0).amax(1, keepdim=True).clamp(min=1)
        alike |= (held - right).abs() <= values.within * size
    found: Tensor = ~alike.all(1)
    return found


def differs(values: RowValues, row: int) -> str:
    """Return what a row has in place of its own value, and whose value that is."""
    held, right = values.held[row], values.right[row]
    if held.numel() > 1:
        at = int((held - right).nan_to_num().abs().argmax())
        text = f"is {held.flatten()[at]:.6g} at entry {at}, not {right.flatten()[at]:.6g}"
    else:
        text = f"is {shown(held)}, not {shown(right)}"
    other = apart(values, held.expand_as(values.right), values.right).tolist()
    pairs = zip(values.requests, other, strict=True)
    others = {name for name, differs in pairs if not differs} - {values.requests[row]}
    return f"{text}; that is the value of request {others.pop()}" if len(others) == 1 else text


def shown(value: Tensor) -> str:
    """Return a value as text."""
    return f"{value.item():.6g}" if value.is_floating_point() else str(value.item())


def finding(rows: RowsGiven, values: RowValues, row: int | None, what: str) -> Finding:
    """Return the finding for a row, or for all."""
    name, (source, via) = values.name, values.place.values()
    request = None if row is None else values.requests[row]
    more = None if values.explain is None or row is None else values.explain(row)
    move = rows.moves.get(request or "")
    if move is not None:
        more = "; ".join(filter(None, (more, move[1])))
        if move[0].lines:
            filled = ", ".join(filter(None, (source, via)))
            source, via = described(move[0])
            via = "; ".join(filter(None, (via, filled and f"it was filled at {filled}")))
    cause = {"what": name, "input": name, "source": source, "via": via}
    which = "all rows" if row is None else f"request {request} (row {row})"
    text = f"{rows.kind}: {name} of {which} {what}"
    reader = {"request": request, "position": None, "forward": rows.number} if request else None
    text = f"{text}; {more}" if more else text
    return rows.found(CHECK.name, text, reader=reader, cause=cause)


CHECK = Check(
    "wrong row",
    "rows",
    "each row of a batch has its own request's sampling parameters, random numbers, adapter, "
    "logits, tokens, log-likelihoods, counts, KV in each layer, and attention to it",
    judge,
    lambda rows: sum(len(values.requests) for values in rows.values),
)
