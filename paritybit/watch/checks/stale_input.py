"""Stale input: the live part of an input differs from the values of the batch."""

from collections.abc import Iterable

import torch

from paritybit.watch.bits import as_integers, on_host
from paritybit.watch.equal import equals, row_at
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
                reader = {"request": row.request, "position": position, "forward": inputs.number}
            slots = (live.flatten()[place].tolist(), expected.flatten()[place].tolist())
            yield inputs.finding(CHECK.name, static, f"{what}{told}", reader, slots, live)


CHECK = Check(
    "stale input",
    "inputs",
    "the live part of each static input holds the values of the batch",
    judge,
    lambda inputs: sum(one.expected is not None for one in inputs.inputs),
)
