"""The checks, in the order in which they are reported. Each is a module with a CHECK."""

from collections.abc import Mapping, Sequence
from importlib import import_module

from paritybit.watch.observations import Check

MODULES = (
    "stray_write",
    "unwritten_slot",
    "wrong_owner",
    "corrupted_read",
    "uninitialised_read",
    "wrong_list",
    "freed_in_use",
    "double_free",
    "leak",
    "engine_error",
    "unrepeatable_replay",
    "padding_leak",
    "graph_and_eager_differ",
    "wrong_read",
    "kernel_race",
    "moved_address",
    "changed_dtype",
    "stale_input",
    "wrong_row",
)

_ALL: Sequence[Check] = [import_module(f"{__name__}.{name}").CHECK for name in MODULES]

CHECKS: Mapping[str, Check] = {check.name: check for check in _ALL}


def selected(names: Sequence[str] | None) -> tuple[Check, ...]:
    """Return the checks with these names, or all for None. Raises ValueError for unknown names."""
    if names is None:
        return tuple(CHECKS.values())
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        raise ValueError(f"no check is named {unknown[0]!r}")
    return tuple(check for name, check in CHECKS.items() if name in names)
