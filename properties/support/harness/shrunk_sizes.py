"""How small what shows a bug must shrink."""

_MOST_STEPS = {
    "swa_pad": 5,
    "swa_int64": 2,
    "req_pool_pad": 6,
    "loc_memo_warning": 4,
    "loc_memo_warning.after_window": 3,
    "loc_memo_warning.entry+before_window": 4,
    "loc_memo_warning.entry+after_window": 3,
    "loc_memo_warning.before_window+after_window": 4,
    "loc_memo_capture": 3,
    "swa_loc_unset": 2,
    "spec_page_table_untranslated": 3,
    "shared_buffer_dtype": 2,
}
"""As many steps as the mechanism of a bug needs, or one more."""

MOST_OF_ANY = max(_MOST_STEPS.values())


def most_steps(bug: str) -> int:
    """Return how long a shrunk schedule that shows a bug may be."""
    return _MOST_STEPS.get(bug, MOST_OF_ANY)
