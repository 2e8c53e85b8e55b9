"""Copy under way: something uses KV that a copy still fills, or changes what it still reads."""

from collections.abc import Iterable

from paritybit.watch.journal import Finding
from paritybit.watch.moves import AWAITS, LOOSE
from paritybit.watch.observations import SHOWN, Check, DuringCopy, uncounted

DOES = {"source": "reads", "target": "fills"}

CAUSES = {
    LOOSE: "the engine may reuse a slot while a copy {} it",
    AWAITS: "the engine does not wait for a copy that {} a slot",
}
"""What is wrong if the engine does it, whoever uses the slot then."""


def judge(found: DuringCopy) -> Iterable[Finding]:
    """Yield the finding. Its cause is the last free or allocation of a place during the copy."""
    moving, place = found.moving, int(found.places[0])
    pool = moving.pool(found.side)
    in_group = pool == ""
    what, call = moving.noted[-1] if moving.noted else ("used", moving.call)
    does, cause = DOES[found.side], CAUSES.get(found.act, f"a slot was {what} while a copy {{}} it")
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
        cause={"what": cause.format(does), **call.who},
        origin="; ".join(since),
    )


CHECK = Check(
    "copy under way",
    "copies",
    "until the engine awaits a copy, nothing uses what it fills, "
    "or changes or reuses what it reads",
    judge,
    uncounted,
)
