"""All bugs by name: those in this engine's history, and those of other engines."""

from collections.abc import Mapping

from paritybit.subjects.bugs import (
    branches,
    caches,
    captured_state,
    dummies,
    index_dtype,
    memo,
    padding_maths,
    races,
    slot_space,
    stale_input,
    window,
    workspace,
)
from paritybit.subjects.bugs.bug import Bug

_FAMILIES = (
    stale_input,
    index_dtype,
    memo,
    slot_space,
    races,
    padding_maths,
    window,
    captured_state,
    workspace,
    caches,
    dummies,
    branches,
)

FIRST = (
    "swa_pad",
    "swa_int64",
    "req_pool_pad",
    "loc_memo_warning",
    "loc_memo_warning.entry",
    "loc_memo_warning.before_window",
    "loc_memo_warning.after_window",
    "loc_memo_warning.entry+before_window",
    "loc_memo_warning.entry+after_window",
    "loc_memo_warning.before_window+after_window",
    "loc_memo_capture",
    "swa_loc_unset",
    "spec_page_table_untranslated",
    "shared_buffer_dtype",
)
"""The bugs with a case file each, in the order in which case files list several.

Newer bugs follow these.
"""


def _place(bug: Bug) -> int:
    return FIRST.index(bug.name) if bug.name in FIRST else len(FIRST)


BUGS: Mapping[str, Bug] = {
    bug.name: bug
    for bug in sorted((bug for family in _FAMILIES for bug in family.BUGS), key=_place)
}
"""All bugs by name, in the order of a trial's bugs."""
