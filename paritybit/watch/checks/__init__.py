"""The checks, in the order in which they are reported."""

from collections.abc import Mapping, Sequence

from paritybit.watch.checks import (
    changed_dtype,
    corrupted_read,
    dirty_log,
    double_free,
    engine_error,
    freed_in_use,
    graph_and_eager_differ,
    kernel_race,
    leak,
    moved_address,
    padding_leak,
    stale_input,
    stray_write,
    uninitialised_read,
    unrepeatable_replay,
    unwritten_slot,
    wrong_list,
    wrong_owner,
    wrong_read,
    wrong_row,
)
from paritybit.watch.observations import Check

CHECKS: Mapping[str, Check] = {
    module.CHECK.name: module.CHECK
    for module in (
        stray_write,
        unwritten_slot,
        wrong_owner,
        corrupted_read,
        uninitialised_read,
        wrong_list,
        freed_in_use,
        double_free,
        leak,
        engine_error,
        unrepeatable_replay,
        padding_leak,
        graph_and_eager_differ,
        wrong_read,
        kernel_race,
        moved_address,
        changed_dtype,
        stale_input,
        wrong_row,
        dirty_log,
    )
}


def selected(names: Sequence[str] | None) -> tuple[Check, ...]:
    """Return the checks with these names, or all for None. Raises ValueError for unknown names."""
    if names is None:
        return tuple(CHECKS.values())
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        raise ValueError(f"no check is named {unknown[0]!r}")
    return tuple(check for name, check in CHECKS.items() if name in names)
