"""Wrong list: an index list has other slots than the row's request and window imply.

The rows after the live rows are padding. Their lists may only contain reserved slots.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from paritybit.watch.equal import owners
from paritybit.watch.facts import Row
from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, Lists
from paritybit.watch.reading import ranges, repeated

PADDING = "padded rows in the index lists"
"""The cause of slots in lists of padded rows: one batch makes the lists of all groups."""


def judge(lists: Lists) -> Iterable[Finding]:
    """Yield a finding for each row whose list is wrong."""
    given, rows = lists.given, lists.forward.rows
    if not rows:
        return
    counts, offsets = given.counts.tolist(), given.offsets.tolist()
    used = max((offset + max(count, 0) for offset, count in zip(offsets, counts, strict=True)))
    entries = given.entries[: max(used, 0)].to("cpu", torch.int64).numpy()
    spans, found = [], list[Finding]()
    for row, count, offset in zip(rows, counts, offsets, strict=False):
        span = span_of(lists, row, count, offset)
        if isinstance(span, str):
            found.append(finding(lists, row, span, first_needed(lists, row), []))
        elif span is not None and offset + count > len(entries):
            there = max(0, len(entries) - offset)
            what = f"{count} entries, of which the tensor has {there}"
            found.append(finding(lists, row, what, span.last, []))
        elif span is not None:
            spans.append(span)
    if spans:
        found += differing(lists, entries, spans)
    yield from found
    what = of_list(lists) if found else PADDING  # Padded rows follow the live ones in the list.
    yield from padding(lists, entries, offsets[len(rows) :], counts[len(rows) :], what)


@dataclass(frozen=True)
class Span:
    """The positions that a row reads through a list: `needed` to `last` - 1.

    The list begins with position `first`. Its first entry has the index `offset`.
    """

    row: Row
    needed: int
    last: int
    first: int
    offset: int


def first_needed(lists: Lists, row: Row) -> int:
    """Return the first position that a row reads through a list."""
    given = lists.given
    window = given.window or row.window or lists.ledger.group.window
    return 0 if window is None else max(0, row.cached + given.step - window + 1)


def span_of(lists: Lists, row: Row, count: int, offset: int) -> Span | str | None:
    """Return the positions that a row reads through a list, or None if there are none.

    If the number of entries is wrong, return a text that describes it.
    """
    given = lists.given
    if given.group not in row.slots:
        return None
    cached, page = row.cached + given.step, given.page
    last = cached + (row.computed if given.computed is None else given.computed)
    needed = min(first_needed(lists, row), last)
    pages, lowest = -(-last // page), needed // page * page
    first = (pages - count) * page
    if needed == last:
        return None
    if first > lowest or first < 0 or (given.exact and first != lowest):
        return f"{count} entries, not {pages - lowest // page}"
    return Span(row, needed, last, first, offset)


def differing(lists: Lists, entries: Any, spans: list[Span]) -> Iterable[Finding]:
    """Yield a finding for each row with an entry that is not the slot of its position.

    `entries` is an int64 array of numpy, which takes less time than torch for few entries.
    """
    given, name = lists.given, lists.ledger.group.name
    position = ranges([(span.needed, span.last) for span in spans]).numpy()
    counts = [span.last - span.needed for span in spans]
    page = given.page  # A list begins with the first position of a page.
    offset = repeated([span.offset - span.first // page for span in spans], counts).numpy()
    listed = entries[offset + position // page] * page + position % page
    parts = [span.row.slots[name][span.needed : span.last].cpu() for span in spans]
    slots = torch.cat(parts).to(torch.int64).numpy()
    (wrong,) = ((listed != slots) & (slots >= 0)).nonzero()
    if not len(wrong):
        return
    number = repeated(range(len(spans)), counts).numpy()
    for which in sorted(set(number[wrong].tolist())):
        mine = wrong[number[wrong] == which]
        at, place = int(position[mine[0]]), mine[0]
        what = f"position {at} as slot {int(listed[place])}, not {int(slots[place])}"
        what += whose(lists, int(listed[place]))
        yield finding(lists, spans[which].row, what, at, slots[mine[:SHOWN]].tolist())


def of_list(lists: Lists) -> str:
    """Return the cause of what is wrong in the list of a live row."""
    return f"the list {lists.given.name}"


def padding(
    lists: Lists, entries: Any, offsets: list[int], counts: list[int], what: str
) -> Iterable[Finding]:
    """Yield a finding if the lists of padded rows contain slots that are not reserved.

    `what` is the cause.
    """
    given = lists.given
    named = [entries[o : o + c] for o, c in zip(offsets, counts, strict=True) if c > 0]
    slots = {entry * given.page for part in named for entry in part.tolist()}
    if wrong := sorted(slots - lists.ledger.group.reserved):
        cause = {"what": what, **given.place}
        yield lists.found(
            CHECK.name,
            f"{given.name} ({given.group}) lists slot {wrong[0]} for a padded row"
            f"{whose(lists, wrong[0])}",
            group=given.group,
            slots=tuple(wrong[:SHOWN]),
            count=len(wrong),
            cause=cause,
        )


def whose(lists: Lists, slot: int) -> str:
    """Return whose slot a slot is, as the end of a sentence, or '' if it is not known."""
    found = next(owners(lists.forward, lists.ledger, slot), None)
    return "" if found is None else f": it is {found}"


def finding(lists: Lists, row: Row, what: str, position: int, slots: list[int]) -> Finding:
    """Return the finding for one row."""
    given = lists.given
    cause = {"what": of_list(lists), **given.place}
    return lists.found(
        CHECK.name,
        f"{given.name} ({given.group}) lists, for request {row.request}, {what}",
        group=given.group,
        slots=tuple(slots),
        reader={"request": row.request, "position": position, "forward": lists.number},
        cause=cause,
    )


CHECK = Check(
    "wrong list",
    "lists",
    "an index list names exactly the slots in each live row's window, in order; padded rows "
    "name reserved slots only",
    judge,
)
