"""Wrong list: a kernel is handed slots other than those that a row's request and window imply.

The rows after the live ones are padding: their lists may only name reserved slots.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from paritybit.watch.facts import Row
from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, Lists, key_of


def judge(lists: Lists) -> Iterable[Finding]:
    """Yield a finding for each row whose list is wrong."""
    given, rows = lists.given, lists.forward.rows
    if not rows:
        return
    counts, offsets = given.counts.tolist(), given.offsets.tolist()
    for number, row in enumerate(rows):
        count, offset = int(counts[number]), int(offsets[number])
        wrong = fault(lists, row, given.entries[offset : offset + max(count, 0)], count)
        if wrong is not None:
            yield finding(lists, row, *wrong)
    yield from padding(lists, offsets[len(rows) :], counts[len(rows) :])


def padding(lists: Lists, offsets: list[int], counts: list[int]) -> Iterable[Finding]:
    """Yield a finding if padded rows list slots that are not reserved."""
    given = lists.given
    named = [given.entries[o : o + c] for o, c in zip(offsets, counts, strict=True) if c > 0]
    if not named:
        return
    slots = torch.cat(named).to(torch.int64) * given.page
    reserved = lists.ledger.reserved.to(slots.device)
    wrong = slots[~torch.isin(slots, reserved)].unique()
    if len(wrong):
        cause = {"what": f"padding in the list {given.name}", "source": given.source}
        yield Finding(
            check=CHECK.name,
            text=f"{given.name} ({given.group}) lists slot {int(wrong[0])} for a padded row",
            key=key_of(CHECK.name, given.group, cause),
            forward=lists.number,
            forward_kind=lists.forward.kind,
            group=given.group,
            slots=tuple(wrong[:SHOWN].tolist()),
            count=len(wrong),
            cause=cause,
        )


def fault(lists: Lists, row: Row, entries: Tensor, count: int) -> tuple[str, int, list[int]] | None:
    """Return what is wrong with a row's entries, at which position, and the right slots there."""
    given, group = lists.given, lists.ledger.group
    cached = row.cached + given.step
    last = cached + (row.computed if given.computed is None else given.computed)
    window = group.window if given.window is None else given.window
    needed = 0 if window is None else max(0, cached - window + 1)
    needed = min(needed, last)
    first = (-(-last // given.page) - count) * given.page
    lowest = needed // given.page * given.page
    if needed == last:
        return None
    if len(entries) < count:
        return f"{count} entries, of which the tensor has {len(entries)}", last, []
    if first > lowest or first < 0 or (given.exact and first != lowest and count):
        right = -(-last // given.page) - lowest // given.page
        return f"{count} entries, not {right}", needed, []
    position = torch.arange(needed, last, device=entries.device)
    listed = entries.to(torch.int64)[(position - first) // given.page] * given.page
    listed += position % given.page
    slots = row.slots[group.name][needed:last].to(entries.device, torch.int64)
    wrong = ((listed != slots) & (slots >= 0)).nonzero().flatten()
    if not len(wrong):
        return None
    place = int(wrong[0])
    what = f"position {needed + place} as slot {int(listed[place])}, not {int(slots[place])}"
    return what, needed + place, slots[wrong[:SHOWN]].tolist()


def finding(lists: Lists, row: Row, what: str, position: int, slots: list[int]) -> Finding:
    """Return the finding for one row."""
    given = lists.given
    cause = {"what": f"the list {given.name}", "source": given.source}
    return Finding(
        check=CHECK.name,
        text=f"{given.name} ({given.group}) lists, for request {row.request}, {what}",
        key=key_of(CHECK.name, given.group, cause),
        forward=lists.number,
        forward_kind=lists.forward.kind,
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
    "a comparison per entry",
    judge,
)
