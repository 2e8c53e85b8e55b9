"""Copy under way: something uses KV that a copy still fills, or changes what it still reads."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.observations import SHOWN, Check, DuringCopy, uncounted

DOES = {"source": "reads", "target": "fills"}


def judge(found: DuringCopy) -> Iterable[Finding]:
    """Yield the finding. Its cause is the last free or allocation of a place during the copy."""
    moving, place = found.moving, int(found.places[0])
    pool = moving.pool(found.side)
    in_group = pool == ""
    what, call = moving.noted[-1] if moving.noted else ("used", moving.call)
    does = DOES[found.side]
    freed = next((one.who for what, one in reversed(moving.noted) if what == "freed"), None)
    since = [f"{moving} began {moving.call}", *(f"{what} {one}" for what, one in moving.noted)]
    yield found.found(
        CHECK.name,
        f"{found.who} {found.act} slot {place} ({pool or moving.copy.group}), which {moving} still "
        f"{does}",
        group=moving.copy.group,
        slots=tuple(found.places[:SHOWN].tolist()),
        count=len(found.places),
        writer=found.ledger.writer(place) if in_group else None,
        reader=None if found.request is None else {"request": found.request},
        freed=freed,
        cause={"what": f"a slot was {what} while a copy {does} it", **call.who},
        origin="; ".join(since),
    )


CHECK = Check(
    "copy under way",
    "copies",
    "until the engine has waited for a copy, nothing uses what it fills or changes what it reads",
    judge,
    uncounted,
)
