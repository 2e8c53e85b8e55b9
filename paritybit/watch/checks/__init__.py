"""The checks, in the order in which they are reported."""

from collections.abc import Mapping, Sequence

from paritybit.watch.checks import (
    changed_dtype,
    copy_under_way,
    double_free,
    engine_error,
    kernel_race,
    leak,
    moved_address,
    reads,
    relations,
    stale_input,
    stray_write,
    unwritten_slot,
    wrong_list,
    wrong_read,
    wrong_row,
)
from paritybit.watch.observations import Check

_ALL: Sequence[Check] = (
    *(stray_write.CHECK, unwritten_slot.CHECK, *reads.CHECKS, wrong_list.CHECK),
    *(copy_under_way.CHECK, double_free.CHECK, leak.CHECK, engine_error.CHECK),
    *(*relations.CHECKS, wrong_read.CHECK),
    *(kernel_race.CHECK, moved_address.CHECK, changed_dtype.CHECK, stale_input.CHECK),
    wrong_row.CHECK,
)

CHECKS: Mapping[str, Check] = {check.name: check for check in _ALL}


def selected(names: Sequence[str] | None) -> tuple[Check, ...]:
    """Return the checks with these names, or all for None. Raises ValueError for unknown names."""
    if names is None:
        return tuple(CHECKS.values())
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        raise ValueError(f"no check is named {unknown[0]!r}")
    return tuple(check for name, check in CHECKS.items() if name in names)
