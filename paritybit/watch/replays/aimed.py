"""Changes one cached key of one layer, to see which queries read it.

The KV that the next layer computes for a token depends on what the token's query read, so it says
whether the query read the changed key. The KV of the layer itself, and of the layers before it,
depends on no key of this layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from paritybit.watch.facts import Group, Row, Window, first_seen
from paritybit.watch.observations import Wrong
from paritybit.watch.reading import first_read
from paritybit.watch.replays.differences import LEAST, beyond
from paritybit.watch.replays.influence import (
    HIDDEN,
    NOTHING_READ,
    LiveReads,
    NotTried,
    Replacement,
    Result,
    appends,
    changed,
    layers_of,
    only_tokens,
)
from paritybit.watch.replays.rerun import LARGEST, Rerun, Values
from paritybit.watch.replays.values import STEPS, ValueSeed, draws

EXACT = (torch.float32, torch.float64)
"""Dtypes that show each key of a window, however little weight it has."""

PLAIN = STEPS - 2
"""The number of a size that shows plainly wherever each bit of a result is exact."""

FEW = 2
"""The number of draws for a key that may not show: of the last layer, or that no query sees."""

MUCH = 2.0**-4
"""A relative difference that another scale of a batch's activations does not explain."""

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Aim:
    """The key of a row that is changed: its group, the number of its layer, position and slot."""

    row: Row
    group: str
    layer: int
    position: int
    slot: int
    window: Window | None

    def sees(self, query: int, slack: int = 0) -> bool:
        """Return whether the key is in the window of a query. `slack` makes the window smaller."""
        return self.position >= first_seen(self.window, query, slack)

    @property
    def readers(self) -> frozenset[int]:
        """The queries of the row that certainly see the key. Some kernels leave out the oldest."""
        row = self.row
        queries = range(row.cached, row.cached + row.computed - row.spare)
        return frozenset(query for query in queries if self.sees(query, slack=1))


@dataclass(frozen=True)
class Moved:
    """By how much the KV of a row's queries changed in a layer, relative to its largest value.

    `sizes` has the queries whose KV is known, and `exact` whether it has 32 bits or more.
    """

    group: str
    layer: int
    sizes: Mapping[int, float]
    exact: bool

    def by(self, size: float) -> frozenset[int]:
        """Return the queries whose KV changed by more than a size."""
        return frozenset(query for query, mine in self.sizes.items() if mine > size)

    @property
    def unmoved(self) -> frozenset[int]:
        """The queries of which each bit is known, and none changed."""
        return frozenset(self.sizes) - self.by(0.0) if self.exact else NOTHING


Held = Sequence[tuple[Row, set[int]]]
"""The rows of a forward, each with the positions at which it has the slot of the changed key."""


def aimed(reads: LiveReads, rerun: Rerun, number: int) -> Result:
    """Change a key that `number` draws, and return the query that reads it wrongly, if one does.

    Values grow until the change shows. One that must not show is tried with two sizes alone.
    """
    aim = drawn(rerun, reads, Random(number))
    if aim is None:
        return NotTried(NOTHING_READ)
    group = rerun.ledgers[aim.group].group
    held = [(row, held_at(row, group, aim.slot)) for row in reads.forward.rows]
    if any(places - {aim.position} for _, places in held):
        return NotTried("the drawn key left the window, and its slot was given away")
    exact = all(tensor.dtype in EXACT for tensor in group.layers[aim.layer].tensors)
    # If bits are exact, the first sizes are the tensor's own and a large one. Otherwise they grow,
    # because a large value may change the scale of the activations of a batch.
    first = [ValueSeed(number), ValueSeed(number, PLAIN)] if exact else []
    tries = [*first, *(draw for draw in draws(number) if draw not in first)]
    unseen = aim.layer == len(group.layers) - 1 and only_tokens(rerun)
    return read_by(rerun, reads, aim, held, tries[: None if aim.readers and not unseen else FEW])


def read_by(
    rerun: Rerun, reads: LiveReads, aim: Aim, held: Held, tries: Sequence[ValueSeed]
) -> Result:
    """Return the query that reads a key wrongly, or not at all although it is in its window."""
    slot = torch.tensor([aim.slot])
    tensors = layers_of(rerun.ledgers[aim.group])[aim.layer]
    wanted = missed = NOTHING if branches(held, aim) else aim.readers
    shown = clear = False
    for number, draw in enumerate(tries):
        change = Replacement(aim.group, slot, tensors, draw)
        with changed(rerun, reads, [change], keep=False) as values:
            own = moved(rerun, values, aim.row)
            after = next_layer(rerun, values, aim, own, held)
            if beyond(rerun.first, values):
                shown = True
                if wrong := dependent(rerun, values, aim, own, after, held):
                    return wrong
        missed &= NOTHING if after is None else after.unmoved
        clear |= after is not None and bool(after.by(LEAST) & wanted)
        exact = after is not None and after.exact
        if shown and not missed and (number or not exact):
            return None
    if missed and not clear:
        missed &= moved_by_all(rerun, reads, aim, held, tries[0].seed)
    if missed:
        text = f"position {min(missed)} does not depend on {{}}, which is in its window"
        return wrong_of(rerun, aim, text, "a key that is not read")
    return None if shown else NotTried(HIDDEN)


def dependent(
    rerun: Rerun, values: Values, aim: Aim, own: Sequence[Moved], after: Moved | None, held: Held
) -> Wrong | None:
    """Return what depends on the key and must not. `after` is the layer after the key's."""
    sharing = {sequence(aim.row), *(sequence(row) for row, places in held if places)}
    others = [row for row, places in held if not places and sequence(row) not in sharing]
    touched = [row for row in others if any(one.by(MUCH) for one in moved(rerun, values, row))]
    if touched:
        text = f"request {touched[-1].request} depends on {{}}"
        return wrong_of(rerun, aim, text, "another request")
    mine = [one for one in own if one.group == aim.group]
    if any(one.by(LEAST) for one in mine if one.layer <= aim.layer):
        return wrong_of(rerun, aim, "an earlier layer depends on {}", "another layer")
    if after is None or branches(held, aim):
        return None
    if outside := sorted(query for query in after.by(LEAST) if not aim.sees(query)):
        text = f"position {outside[0]} depends on {{}}, which is outside of its window"
        return wrong_of(rerun, aim, text, "a key outside of a window")
    return None


def moved_by_all(rerun: Rerun, reads: LiveReads, aim: Aim, held: Held, seed: int) -> frozenset[int]:
    """Return the queries that other values in all keys of the row move, as a control."""
    ledger, row = rerun.ledgers[aim.group], aim.row
    keys = ledger.index(row.slots[aim.group][first_read(row, ledger.group) : row.cached])
    every = Replacement.fitting(
        ledger, keys, layers_of(ledger)[aim.layer], LARGEST, ValueSeed(seed)
    )
    for draw in draws(seed):
        with changed(rerun, reads, [replace(every, draw=draw)], keep=False) as values:
            after = next_layer(rerun, values, aim, moved(rerun, values, row), held)
        if after is not None and (queries := after.by(LEAST)):
            return queries
    return NOTHING


def next_layer(
    rerun: Rerun, values: Values, aim: Aim, own: Sequence[Moved], held: Held
) -> Moved | None:
    """Return the layer after the key's, with the queries of the row's request that changed there.

    It is the layer with the fewest changed queries, because those that read these queries change
    only later. If no query changed, it is the next one of the same group, if there is one.
    """
    found = [*own]
    for row, places in held:
        if row is not aim.row and not places and sequence(row) == sequence(aim.row):
            found += moved(rerun, values, row)
    if later := [one for one in found if one.by(0.0)]:
        return min(later, key=lambda one: len(one.by(0.0)))
    of_group = [one for one in own if one.group == aim.group]
    return next((one for one in of_group if one.layer == aim.layer + 1), None)


def branches(held: Held, aim: Aim) -> bool:
    """Return whether the key's request has several rows.

    Kernels may count the window of a tree's branch by the number of its nodes.
    """
    return sum(row.request == aim.row.request for row, _ in held) > 1


def wrong_of(rerun: Rerun, aim: Aim, text: str, what: str) -> Wrong:
    """Return the wrong read of a key, whose name replaces `{}` in the text."""
    layer = rerun.ledgers[aim.group].group.layers[aim.layer].name
    key = f"position {aim.position} of request {aim.row.request} in {layer}"
    text = text.replace("{}", key)
    return Wrong(f"reads wrongly: {text}", aim.group, layer, (aim.slot,), {"what": what})


def drawn(rerun: Rerun, reads: LiveReads, random: Random) -> Aim | None:
    """Draw a row, a group, a layer and a cached position, often at the edge of the window.

    Keys before the window of all queries are tried with the slots that no live row reads.
    """
    held = [
        (row, name)
        for row in reads.forward.rows
        for name, ledger in rerun.ledgers.items()
        if row.computed and first_read(row, ledger.group) < row.cached and appends(row, name)
    ]
    if not held:
        return None
    row, name = random.choice(held)
    group = rerun.ledgers[name].group
    first = first_read(row, group)
    edge = first + random.randrange(row.computed + 1)
    places = [first, edge, edge, row.cached - 1, random.randrange(first, row.cached)]
    position = random.choice([place for place in places if place < row.cached])
    slot = int(row.slots[name][position])
    if not bool(rerun.ledgers[name].usable[slot]) or slot < 0:
        return None
    layer = random.randrange(len(group.layers))
    window = group.layers[layer].window or row.window or group.window
    return Aim(row, name, layer, position, slot, window)


def sequence(row: Row) -> tuple[object, ...]:
    """Return what rows of one request, such as one per group, have in common."""
    return row.cached, row.computed, tuple(row.tokens)


def held_at(row: Row, group: Group, slot: int) -> set[int]:
    """Return the positions at which a row reads or computes a slot.

    A slot that its window has left may be another row's, even of the same request.
    """
    slots, first = row.slots.get(group.name), first_read(row, group)
    if slots is None:
        return set()
    return {first + place for place in (slots[first:] == slot).nonzero().flatten().tolist()}


def moved(rerun: Rerun, values: Values, row: Row) -> list[Moved]:
    """Return, for each layer, by how much the KV of a row's queries differs from the first run."""
    last, found = row.cached + row.computed - row.spare, list[Moved]()
    for one, other in zip(rerun.first.owned, values.owned, strict=True):
        name = one.ledger.group.name
        if name not in row.slots:
            continue
        place = {slot: at for at, slot in enumerate(one.slots.tolist())}
        mine = enumerate(row.slots[name][row.cached : last].tolist(), row.cached)
        known = {query: place[slot] for query, slot in mine if slot in place}
        at = torch.tensor([*known.values()], dtype=torch.int64)
        parts = iter(zip(one.rows, other.rows, strict=True))
        for number, layer in enumerate(one.ledger.group.layers):
            pairs = [next(parts) for _ in layer.tensors]
            sizes = [relative(a[at], b[at]) for a, b in pairs]
            largest = torch.stack(sizes).amax(0).tolist() if known else []
            exact = all(a.dtype in EXACT for a, _ in pairs)
            found.append(Moved(name, number, dict(zip(known, largest, strict=True)), exact))
    return found


def relative(one: Tensor, other: Tensor) -> Tensor:
    """Return the largest difference of each row, relative to its largest value, float [n]."""
    if not one.dtype.is_floating_point:
        return (one != other).flatten(1).any(1).float()
    left, right = one.double().flatten(1), other.double().flatten(1)
    return (left - right).abs().amax(1) / left.abs().amax(1).clamp(min=1e-30)
