"""Changes one cached key of one layer, to see which queries read it.

The KV that the next layer computes for a token depends on what the token's query read. So the next
layer says, for each query, whether it read the changed key. The KV of the layer itself, and of the
layers before it, depends on no key of this layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from paritybit.watch.facts import Group, Row
from paritybit.watch.reading import first_read
from paritybit.watch.replays.differences import LEAST
from paritybit.watch.replays.influence import Change, Reads, Wrong, changed
from paritybit.watch.replays.trial import Trial, Values

EXACT = (torch.float32, torch.float64)
"""Dtypes that show each key of a window, however little weight it has."""

MUCH = 2.0**-4
"""A relative difference that another scale of a batch's activations does not explain."""


@dataclass(frozen=True)
class Aim:
    """The key of a row that is changed: its group, the number of its layer, position and slot."""

    row: Row
    group: str
    layer: int
    position: int
    slot: int
    window: int | None

    def sees(self, query: int, slack: int = 0) -> bool:
        """Return whether the key is in the window of a query. `slack` makes the window smaller."""
        return self.window is None or query - self.position < self.window - slack


@dataclass(frozen=True)
class Moved:
    """The queries of a row whose KV changed in a layer: much, beyond rounding, or in any bit.

    `known` are the queries whose KV is known, and `exact` whether it has 32 bits or more.
    """

    group: str
    layer: int
    known: frozenset[int]
    much: frozenset[int]
    beyond: frozenset[int]
    some: frozenset[int]
    exact: bool


def aimed(trial: Trial, reads: Reads, number: int) -> Wrong | None:
    """Change a key that `number` draws, and return the query that reads it wrongly, if one does."""
    aim = drawn(trial, reads, Random(number))
    if aim is None:
        return None
    rows, group = reads.forward.rows, trial.ledgers[aim.group].group
    held = [held_at(row, group, aim.slot) for row in rows]
    if any(places - {aim.position} for places in held):
        return None  # The key left the window, and its slot was given away.
    layers = group.layers
    sizes = [len(layer.tensors) for layer in layers]
    begin = sum(sizes[: aim.layer])
    tensors = range(begin, begin + sizes[aim.layer])
    pair = layers[aim.layer].tensors
    large = tensors[1:] if len(pair) == 2 and pair[1].dtype in EXACT else ()  # Values, not keys.
    slot = torch.tensor([aim.slot], device=trial.ledgers[aim.group].device)
    change = Change(aim.group, slot, tensors, large)
    with changed(trial, reads, [change], keep=False) as values:
        own = [*moved(trial, values, aim.row)]
        found, touched = [*own], None
        sharing = {sequence(row) for row, places in zip(rows, held, strict=True) if places}
        for row, places in zip(rows, held, strict=True):
            if row is aim.row or places:
                continue
            if sequence(row) == sequence(aim.row):
                found += moved(trial, values, row)
            elif sequence(row) not in sharing and any(
                one.much for one in moved(trial, values, row)
            ):
                touched = row
    name = layers[aim.layer].name
    key = f"position {aim.position} of request {aim.row.request} in {name}"
    if touched is not None:
        return wrong_of(aim, name, f"request {touched.request} depends on {key}", "another request")
    mine = [one for one in own if one.group == aim.group]
    if any(one.beyond for one in mine if one.layer <= aim.layer):
        return wrong_of(aim, name, f"an earlier layer depends on {key}", "another layer")
    if sum(row.request == aim.row.request for row in reads.forward.rows) > 1:
        return None  # Kernels may count the window of a tree's branch by the number of its nodes.
    after = next((one for one in mine if one.layer == aim.layer + 1), None)
    return of_next_layer(aim, found, after, name, key)


def of_next_layer(
    aim: Aim, found: list[Moved], after: Moved | None, name: str, key: str
) -> Wrong | None:
    """Judge the queries that read the key, by the layer after the one that was changed.

    `after` is the next layer of the same group, if there is one.
    """
    queries = range(aim.row.cached, aim.row.cached + aim.row.computed - aim.row.spare)
    needed = {query for query in queries if aim.sees(query, slack=1)}
    later = [one for one in found if one.some]
    if not later:
        if after is None or not after.exact or not needed & after.known:
            return None
        return wrong_of(aim, name, f"no later layer depends on {key}", "a key that is not read")
    # Queries that read it change in the next layer; those that read these queries, only later.
    after_it = min(later, key=lambda one: len(one.some))
    if beyond := sorted(query for query in after_it.beyond if not aim.sees(query)):
        text = f"position {beyond[0]} depends on {key}, which is outside of its window"
        return wrong_of(aim, name, text, "a key outside of a window")
    if after_it.exact and (missed := sorted(needed & after_it.known - after_it.some)):
        text = f"position {missed[0]} does not depend on {key}, which is in its window"
        return wrong_of(aim, name, text, "a key that is not read")
    return None


def wrong_of(aim: Aim, layer: str, text: str, cause: str) -> Wrong:
    """Return the wrong read."""
    return Wrong(f"reads wrongly: {text}", aim.group, layer, (aim.slot,), {"what": cause})


def drawn(trial: Trial, reads: Reads, random: Random) -> Aim | None:
    """Draw a row, a group, a layer and a cached position, often at the edge of the window."""
    if reads.forward.model:  # A draft's next step depends on what the one before it drafted.
        return None
    held = [
        (row, name)
        for row in reads.forward.rows
        for name, ledger in trial.ledgers.items()
        if row.computed and first_read(row, ledger.group) < row.cached and appends(row, name)
    ]
    if not held:
        return None
    row, name = random.choice(held)
    group = trial.ledgers[name].group
    first = first_read(row, group)
    edge = first - 1 + random.randrange(row.computed + 2)
    places = [first - 1, first, edge, edge, row.cached - 1, random.randrange(first, row.cached)]
    position = random.choice([place for place in places if 0 <= place < row.cached])
    slot = int(row.slots[name][position])
    if not bool(trial.ledgers[name].usable[slot]) or slot < 0:
        return None
    layer = random.randrange(len(group.layers))
    return Aim(row, name, layer, position, slot, row.window or group.window)


def appends(row: Row, name: str) -> bool:
    """Return whether a row keeps the slots that it reads. A recurrent layer replaces its state."""
    slots = row.slots[name]
    return not bool(torch.isin(slots[row.cached :], slots[row.cached - 1]).any())


def sequence(row: Row) -> tuple[object, ...]:
    """Return what rows of one request have in common, of which an engine may have one per group."""
    return row.cached, row.computed, tuple(row.tokens)


def held_at(row: Row, group: Group, slot: int) -> set[int]:
    """Return the positions at which a row reads or computes a slot.

    The slots of a row also name those that its window has left. The engine may have given such a
    slot to another row, even of the same request.
    """
    slots, first = row.slots.get(group.name), first_read(row, group)
    if slots is None:
        return set()
    return {first + place for place in (slots[first:] == slot).nonzero().flatten().tolist()}


def moved(trial: Trial, values: Values, row: Row) -> Iterator[Moved]:
    """Yield, for each layer, which queries of a row have other KV than in the first run."""
    last = row.cached + row.computed - row.spare
    for one, other in zip(trial.first.owned, values.owned, strict=True):
        name = one.ledger.group.name
        if name not in row.slots:
            continue
        mine = row.slots[name][row.cached : last].to(one.slots.device, torch.int64)
        place = placed(mine, one.slots)
        known = (place >= 0).nonzero().flatten()
        parts = iter(zip(one.rows, other.rows, strict=True))
        for number, layer in enumerate(one.ledger.group.layers):
            pairs = [next(parts) for _ in layer.tensors]
            sizes = [relative(a[place[known]], b[place[known]]) for a, b in pairs]
            size = torch.stack(sizes).amax(0) if len(known) else known.float()
            yield Moved(
                name,
                number,
                frozenset((known + row.cached).tolist()),
                frozenset((known[size > MUCH] + row.cached).tolist()),
                frozenset((known[size > LEAST] + row.cached).tolist()),
                frozenset((known[size > 0] + row.cached).tolist()),
                all(a.dtype in EXACT for a, _ in pairs),
            )


def placed(slots: Tensor, among: Tensor) -> Tensor:
    """Return the index of each slot in a tensor of slots, or -1, int64 [n]."""
    if not len(among):
        return torch.full_like(slots, -1)
    order = among.argsort()
    at = torch.searchsorted(among[order], slots).clamp(max=len(among) - 1)
    return order[at].where(among[order[at]] == slots, slots.new_full((), -1))


def relative(one: Tensor, other: Tensor) -> Tensor:
    """Return the largest difference of each row, relative to its largest value, float [n]."""
    if not one.dtype.is_floating_point:
        return (one != other).flatten(1).any(1).float()
    left, right = one.double().flatten(1), other.double().flatten(1)
    return (left - right).abs().amax(1) / left.abs().amax(1).clamp(min=1e-30)
