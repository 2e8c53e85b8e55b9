"""Missing resets of the translation memo, one by one and together."""

from paritybit.subjects.bugs.bug import THREAD, Bug
from paritybit.subjects.bugs.expected import (
    COMPILED,
    DECODE,
    DRAFT,
    DRAFT_EXTEND,
    FROZEN,
    KINDS,
    PREFILL,
    VERIFY,
    always_replayed,
    masked,
    seen,
)
from paritybit.subjects.toggles import LocationScheme

FAMILY = "memo that outlives its key"

_THREADS = THREAD.format(25824) + ", fixed by " + THREAD.format(26152)

BUGS = (
    Bug(
        name="loc_memo_warning",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "25824 without 26152: nothing clears the memo around the window translation, "
            "so it alternates with the translation of out_cache_loc and the pool logs a "
            "warning. Every value is correct. The warning appears in every eager forward, "
            "and in a replay without an allocation before it."
        ),
        expected=seen("log_hygiene", *KINDS),
        without=("entry", "before_window", "after_window"),
    ),
    Bug(
        name="loc_memo_warning.entry",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism="The memo is not cleared before a path is chosen.",
        expected=masked("before_window clears the memo just before the window translation"),
        without=("entry",),
    ),
    Bug(
        name="loc_memo_warning.before_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "The memo is not cleared before the window translation. The capture of the "
            "next bucket, which has no entry, logs a warning; no step does."
        ),
        expected=masked(
            "entry clears the memo, and nothing is translated between entry and the window "
            "translation"
        ),
        without=("before_window",),
    ),
    Bug(
        name="loc_memo_warning.after_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "The memo is not cleared after the window translation. If an eager forward then "
            "translates out_cache_loc in Python, the pool logs a warning."
        ),
        expected=seen(
            "log_hygiene",
            COMPILED,
            DRAFT_EXTEND,
            PREFILL,
            but=always_replayed(
                "in a full graph, Python translates nothing after the window translation"
            ),
        ),
        without=("after_window",),
    ),
    Bug(
        name="loc_memo_warning.entry+before_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "Nothing clears the memo before the window translation. If a forward left a "
            "key and nothing was allocated since, as in an idle step, the pool logs a "
            "warning."
        ),
        expected=seen(
            "log_hygiene",
            DECODE,
            COMPILED,
            VERIFY,
            DRAFT,
            FROZEN,
            DRAFT_EXTEND,
            but={PREFILL: "every extend allocates first, and the allocator clears the memo"},
        ),
        without=("entry", "before_window"),
    ),
    Bug(
        name="loc_memo_warning.entry+after_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "Same effect as after_window alone, because the clear in before_window masks the "
            "missing clear in entry."
        ),
        expected=seen(
            "log_hygiene",
            COMPILED,
            DRAFT_EXTEND,
            PREFILL,
            but=always_replayed("the clear in before_window masks the missing clear in entry"),
        ),
        without=("entry", "after_window"),
    ),
    Bug(
        name="loc_memo_warning.before_window+after_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "Same effect as after_window alone, because the clear in entry masks the missing "
            "clear in before_window."
        ),
        expected=seen(
            "log_hygiene",
            COMPILED,
            DRAFT_EXTEND,
            PREFILL,
            but=always_replayed("the clear in entry masks the missing clear in before_window"),
        ),
        without=("before_window", "after_window"),
    ),
    Bug(
        name="loc_memo_capture",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(25824),
        mechanism=(
            "The memo is not cleared at the start of the warm-up and capture runs. The "
            "capture hits the entry from the warm-up and records no translation, so every "
            "replay silently writes to the SWA slots of the warm-up."
        ),
        expected=seen(
            "kv_parity",
            DECODE,
            VERIFY,
            DRAFT_EXTEND,
            but={
                COMPILED: "the runner captures nothing; each forward translates again",
                DRAFT: (
                    "each forward writes to another slice of out_cache_loc, so the memo "
                    "misses and the capture logs a warning"
                ),
                FROZEN: "it stores no KV, so its graph contains no translation",
                PREFILL: "KV is stored between the graphs, so no graph contains a translation",
            },
        ),
        without=("run_once",),
    ),
)
