"""How small what shows a bug must shrink."""

MOST_STEPS = {
    "swa_pad": 5,
    "swa_int64": 2,
    "req_pool_pad": 6,
    "loc_memo_warning": 4,
    "loc_memo_warning.after_window": 3,
    "loc_memo_warning.entry+before_window": 4,
    "loc_memo_warning.entry+after_window": 3,
    "loc_memo_warning.before_window+after_window": 3,
    "loc_memo_capture": 3,
    "swa_loc_unset": 2,
    "spec_page_table_untranslated": 3,
    "shared_buffer_dtype": 2,
}
"""How long a shrunk schedule may be: as many steps as the mechanism needs, or one more."""
