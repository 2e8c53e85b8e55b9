"""Stale input: the live part of an input differs from the values of the batch."""

from collections.abc import Iterable

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers, on_host
from paritybit.watch.equal import equals, row_at
from paritybit.watch.facts import Forward, Row
from paritybit.watch.journal import Finding
from paritybit.watch.observations import Check, Inputs


def judge(inputs: Inputs) -> Iterable[Finding]:
    """Yield a finding per stale input."""
    known = [static for static in inputs.inputs if static.expected is not None]
    parts = [
        one.tensor.narrow(one.axis, 0, min(one.live, one.tensor.shape[one.axis])) for one in known
    ]
    for static, live in zip(known, on_host(parts), strict=True):
        assert static.expected is not None
        expected = static.expected.to("cpu", live.dtype)
        if live.shape != expected.shape:
            what = f"{static.name} has {list(live.shape)} live, not {list(expected.shape)}"
            yield inputs.finding(CHECK.name, static, what)
        elif not torch.equal(live, expected):
            bits = as_integers(live.contiguous()) != as_integers(expected.contiguous())
            place = (bits & (live != expected)).flatten().nonzero().flatten()
            if not len(place):  # Equal NaNs.
                continue
            first = int(place[0])
            held, right = live.flatten()[first].item(), expected.flatten()[first].item()
            what = f"{static.name} holds {held} at live entry {first}, not {right}"
            told = equals(inputs, static, live, place)
            reader, at = None, row_at(inputs.forward, first, expected.numel())
            if at is not None:
                row, position = at
                told += others(inputs.forward, row, expected.flatten() == held)
                reader = {"request": row.request, "position": position, "forward": inputs.number}
            slots = (live.flatten()[place].tolist(), expected.flatten()[place].tolist())
            yield inputs.finding(CHECK.name, static, f"{what}{told}", reader, slots, live)


def others(forward: Forward, mine: Row, held: Tensor) -> str:
    """Return whose value a wrong value of a row is, as the end of a sentence, or ''.

    `held` says which entries of an input are to have that value.
    """
    places = held.nonzero().flatten().tolist()
    rows = [row_at(forward, place, len(held)) for place in places]
    names = {one[0].request for one in rows if one is not None} - {mine.request}
    return f"; that is the value of request {names.pop()}" if len(names) == 1 else ""


CHECK = Check(
    "stale input",
    "inputs",
    "the live part of each static input holds the values of the batch",
    judge,
    lambda inputs: sum(one.expected is not None for one in inputs.inputs),
)
