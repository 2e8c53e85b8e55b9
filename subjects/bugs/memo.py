"""Sites of the translation memo's resets that are missing, one by one and together."""

from paritybit.subjects.bugs.bug import THREAD, Bug
from paritybit.subjects.toggles import LocationScheme

FAMILY = "memo that outlives its key"

_THREADS = THREAD.format(25824) + ", mended by " + THREAD.format(26152)

BUGS = (
    Bug(
        name="loc_memo_warning",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "25824 without 26152: nobody clears the memo around the window translation, so"
            " it takes turns with out_cache_loc's and the pool warns, every value being right:"
            " in every eager forward, and in a replay that no allocation precedes."
        ),
        without=("entry", "before_window", "after_window"),
    ),
    Bug(
        name="loc_memo_warning.entry",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism="The memo is not cleared before a path is chosen.",
        without=("entry",),
    ),
    Bug(
        name="loc_memo_warning.before_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "The memo is not cleared before the window translation. The capture of the next"
            " bucket, which has no entry, warns; no step does."
        ),
        without=("before_window",),
    ),
    Bug(
        name="loc_memo_warning.after_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "The memo is not cleared after the window translation: where Python then"
            " translates out_cache_loc (an eager forward), the pool warns."
        ),
        without=("after_window",),
    ),
    Bug(
        name="loc_memo_warning.entry+before_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism=(
            "Nothing clears the memo before the window translation: after a forward that"
            " left a key, with no allocation in between (an idle step), the pool warns."
        ),
        without=("entry", "before_window"),
        in_traffic=False,
    ),
    Bug(
        name="loc_memo_warning.entry+after_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism="As after_window alone: before_window hides what entry leaves.",
        without=("entry", "after_window"),
    ),
    Bug(
        name="loc_memo_warning.before_window+after_window",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=_THREADS,
        mechanism="As after_window alone: entry hides what before_window leaves.",
        without=("before_window", "after_window"),
    ),
    Bug(
        name="loc_memo_capture",
        family=FAMILY,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(25824),
        mechanism=(
            "The memo is not cleared at the top of the warm-up and capture runs: the capture"
            " hits what the warm-up left, no translation is recorded, and every replay writes"
            " to the SWA slots of the warm-up, silently."
        ),
        without=("run_once",),
    ),
)
