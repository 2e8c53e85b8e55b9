"""Wrong list: an index list has other slots than the row's request and window imply.

The rows after the live rows are padding. Their lists may only contain reserved slots.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from paritybit.watch.equal import owners
from paritybit.watch.facts import Row, first_seen
from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, GivenList
from paritybit.watch.reading import ranges, repeated

PADDING = "padded rows in the index lists"
"""The cause of slots in lists of padded rows: one batch makes the lists of all groups."""


def judge(lists: GivenList) -> Iterable[Finding]:
    """Yield a finding for each row whose list is wrong."""
    given, rows = lists.given, lists.forward.rows
    if not rows:
        return
    parts = [*zip(given.offsets.tolist(), given.counts.tolist(), strict=True)]
    entries = given.entries.numpy()
    what = PADDING
    suspects = () if right(lists, entries, parts) else enumerate(zip(rows, parts, strict=False))
    for at, (row, (offset, count)) in suspects:
        if given.group in row.slots and (found := fault(lists, row, entries, offset, count)):
            text, position, slots = found
            what = f"the list {given.name}"  # Padded rows follow the live ones in the list.
            yield lists.found(
                CHECK.name,
                f"{given.name} ({given.group}) lists, for request {row.request}, {text}",
                group=given.group,
                slots=tuple(slots),
                reader={"request": row.request, "position": position, "forward": lists.number},
                cause=cause_of(lists, at, entries, offset, count),
            )
    padded = {
        slot * given.page
        for offset, count in parts[len(rows) :]
        for slot in entries[offset : offset + max(0, count)].tolist()
    }
    if wrong := sorted(slot for slot in padded - lists.ledger.group.reserved if slot >= 0):
        yield lists.found(
            CHECK.name,
            f"{given.name} ({given.group}) lists slot {wrong[0]} for a padded row"
            f"{whose(lists, wrong[0])}",
            group=given.group,
            slots=tuple(wrong[:SHOWN]),
            count=len(wrong),
            cause={"what": what, **given.place},
        )


def cause_of(
    lists: GivenList, at: int, entries: Any, offset: int, count: int
) -> dict[str, Any] | None:
    """Return the cause of a wrong list of a row: a wrong input with which it agrees, or the list.

    None means that it is not known.
    """
    mine = lists.forward.rows[at]
    bases = [one for one in lists.forward.bases if one.rows is None or one.rows[at] is not mine]
    for base in bases:
        if base.rows is not None and fault(lists, base.rows[at], entries, offset, count) is None:
            return base.cause
    if len(bases) > 1 or any(base.rows is None for base in bases):
        return None
    return {"what": f"the list {lists.given.name}", **lists.given.place}


def span(lists: GivenList, row: Row) -> tuple[int, int]:
    """Return the first position that a row's list must have, and the end of the list."""
    given = lists.given
    cached = row.cached + given.step
    last = cached + (row.computed if given.computed is None else given.computed)
    window = given.window or row.window or lists.ledger.group.window
    return min(last, first_seen(window, cached)), last


def right(lists: GivenList, entries: Any, parts: Sequence[tuple[int, int]]) -> bool:
    """Return whether no row's list is wrong, as `fault` says for one row, for all rows at once."""
    given, page = lists.given, lists.given.page
    spans, shifts, counts, slots = list[tuple[int, int]](), list[int](), list[int](), []
    for row, (offset, count) in zip(lists.forward.rows, parts, strict=False):
        needed, last = span(lists, row) if given.group in row.slots else (0, 0)
        if needed < last:
            first = -(-last // page) - count
            lowest = needed // page
            if not 0 <= first <= lowest or (given.exact and first != lowest):
                return False
            spans.append((needed, last))
            shifts.append(offset - first)
            counts.append(last - needed)
            slots.append(row.slots[given.group][needed:last])
    if not slots:
        return True
    position = ranges(spans).numpy()
    places = position // page + repeated(shifts, counts).numpy()
    if places.max() >= len(entries):
        return False
    held = torch.cat(slots).to("cpu", torch.int64).numpy()
    return not ((entries[places] * page + position % page != held) & (held >= 0)).any()


def fault(
    lists: GivenList, row: Row, entries: Any, offset: int, count: int
) -> tuple[str, int, Sequence[int]] | None:
    """Return what a row's list has that is wrong, for which position, and its right slots.

    `entries` is an int64 array of numpy, which takes less time than torch for few entries.
    """
    given, page = lists.given, lists.given.page
    needed, last = span(lists, row)
    if needed == last:
        return None
    pages, lowest = -(-last // page), needed // page * page
    first = (pages - count) * page  # A list begins with the first position of a page.
    if not 0 <= first <= lowest or (given.exact and first != lowest):
        return f"{count} entries, not {pages - lowest // page}", needed, ()
    if offset + count > len(entries):
        return f"{count} entries, of which the tensor has {max(0, len(entries) - offset)}", last, ()
    mine = entries[offset + needed // page - first // page : offset + count]
    listed = (mine[:, None] * page + range(page)).flatten()[needed % page :][: last - needed]
    slots = row.slots[given.group][needed:last].to("cpu", torch.int64).numpy()
    (wrong,) = ((listed != slots) & (slots >= 0)).nonzero()
    if not len(wrong):
        return None
    place = int(wrong[0])
    text = f"position {needed + place} as slot {listed[place]}, not {slots[place]}"
    text += whose(lists, int(listed[place]))
    return text, needed + place, slots[wrong[:SHOWN]].tolist()


def whose(lists: GivenList, slot: int) -> str:
    """Return whose slot a slot is, as the end of a sentence, or '' if it is not known."""
    found = next(owners(lists.forward, lists.ledger, slot), None)
    return "" if found is None else f": it is {found}"


CHECK = Check(
    "wrong list",
    "lists",
    "an index list names exactly the slots in each live row's window, in order; padded rows "
    "name reserved slots only",
    judge,
)
