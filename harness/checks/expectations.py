"""The table of bugs and runners: which property must detect a bug on a runner, or why none can.

There is a row per bug, written before the bug is hunted. The columns are kinds of runners, so a
new runner of a known kind needs no change here.
"""

from dataclasses import dataclass

from paritybit.harness.checks.expected import (
    COMPILED,
    DECODE,
    DRAFT,
    DRAFT_EXTEND,
    FROZEN,
    KINDS,
    PREFILL,
    VERIFY,
    Row,
    RunnerKind,
    always_replayed,
    masked,
    seen,
)
from paritybit.harness.checks.expected_of_catalogue import CATALOGUE
from paritybit.harness.checks.expected_of_graphs import GRAPHS
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import RUNNERS


@dataclass(frozen=True)
class Expectation:
    """The expected result for one bug on one runner. Exactly one field is not None.

    `detected_by` is the property that must be violated. `unaffected` is the reason why none is.
    """

    detected_by: str | None
    unaffected: str | None


TABLE: dict[str, Row] = {
    "swa_pad": seen(
        "kv_parity",
        DECODE,
        VERIFY,
        # Prefill attention reads real tokens only, so the wrong padded locations stay unread.
        instead={PREFILL: "live_inputs"},
    ),
    "swa_int64": seen("index_contract", DECODE, VERIFY, PREFILL),
    "req_pool_pad": seen("hermetic_replay", DECODE, COMPILED, VERIFY, DRAFT, FROZEN, DRAFT_EXTEND),
    "loc_memo_warning": seen("log_hygiene", *KINDS),
    "loc_memo_warning.entry": masked(
        "before_window clears the memo just before the window translation"
    ),
    "loc_memo_warning.before_window": masked(
        "entry clears the memo, and nothing is translated between entry and the window translation"
    ),
    "loc_memo_warning.after_window": seen(
        "log_hygiene",
        COMPILED,
        DRAFT_EXTEND,
        PREFILL,
        but=always_replayed(
            "in a full graph, Python translates nothing after the window translation"
        ),
    ),
    "loc_memo_warning.entry+before_window": seen(
        "log_hygiene",
        DECODE,
        COMPILED,
        VERIFY,
        DRAFT,
        FROZEN,
        DRAFT_EXTEND,
        but={PREFILL: "every extend allocates first, and the allocator clears the memo"},
    ),
    "loc_memo_warning.entry+after_window": seen(
        "log_hygiene",
        COMPILED,
        DRAFT_EXTEND,
        PREFILL,
        but=always_replayed("the clear in before_window masks the missing clear in entry"),
    ),
    "loc_memo_warning.before_window+after_window": seen(
        "log_hygiene",
        COMPILED,
        DRAFT_EXTEND,
        PREFILL,
        but=always_replayed("the clear in entry masks the missing clear in before_window"),
    ),
    "loc_memo_capture": seen(
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
    "swa_loc_unset": seen(
        "captured_path",
        DECODE,
        VERIFY,
        but={
            PREFILL: (
                "swa_loc is set on every replay, so no captured graph can contain the slow path"
            ),
        },
    ),
    "spec_page_table_untranslated": seen("logits_parity", VERIFY),
    "shared_buffer_dtype": seen("index_contract", *KINDS),
    "barrier_before_launch": seen("logits_parity", DECODE, PREFILL),
    "freed_row_rewritten": seen("logits_parity", DECODE, PREFILL),
    "evicted_in_flight": seen("logits_parity", DECODE),
    "pinned_slots_reused": seen("kv_parity", DECODE, PREFILL),
    **CATALOGUE,
    **GRAPHS,
}
"""The rows by the name of the bug."""


def expectation(bug: Bug, runner: str) -> Expectation:
    """Return the expected result for `bug` on `runner`.

    Raises KeyError for a bug without a row, and if the row has no cell for this kind of runner.
    """
    if bug.name not in TABLE:
        raise KeyError(f"bug {bug.name} has no row in the table of expectations")
    row = TABLE[bug.name]
    lacks = lacking(bug, runner)
    if lacks is not None:
        return Expectation(None, lacks)
    kind = RunnerKind(RUNNERS[runner].mode, RUNNERS[runner].captures)
    if kind in row.affected:
        return Expectation(row.instead.get(kind, row.detected_by), None)
    if kind in row.unaffected:
        return Expectation(None, row.unaffected[kind])
    raise KeyError(f"whether {bug.name} can affect {runner} is undecided; add it to the bug's row")


def unaffected_reason(bug: Bug, runner: str) -> str | None:
    """Return why `bug` cannot affect `runner`, or None if it can. Raises as `expectation` does."""
    return expectation(bug, runner).unaffected


def affected_runners(bug: Bug) -> tuple[str, ...]:
    """Return the runners that `bug` can affect. Raises as `expectation` does."""
    return tuple(name for name in RUNNERS if unaffected_reason(bug, name) is None)


def detected_by(bug: Bug, runner: str) -> str | None:
    """Return the property that must detect `bug` on `runner`, or None. Raises as `expectation`."""
    return expectation(bug, runner).detected_by
