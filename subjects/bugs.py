"""The catalogue: every historical bug as a named, documented difference from what is right."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from subjects.behaviour import Behaviour, Era, Invalidation
from subjects.contracts import Contract, Policy, contract
from subjects.engine import Subject

THREAD = "https://github.com/sgl-project/sglang/pull/{}"


@dataclass(frozen=True)
class Bug:
    """One bug: where it was seen, how it works, and how it differs from what is right.

    `family` is the kind of fault it is. `rows` replaces fields of contract rows,
    `without` drops invalidation sites.
    `caught_by` names the property that must see it; `masked_by` says, for a
    difference that shows nowhere, which other site hides it.
    """

    name: str
    family: str
    era: Era
    thread: str
    mechanism: str
    caught_by: str | None
    runners: tuple[str, ...] = ("decode",)
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    masked_by: str | None = None


STALE_INPUT = "stale static input in padded rows"
INDEX_DTYPE = "index dtype"
MEMO = "memo that outlives its key"

_MEMO_THREADS = THREAD.format(25824) + ", mended by " + THREAD.format(26152)

_CATALOGUE = (
    Bug(
        name="swa_pad",
        family=STALE_INPUT,
        era=Era.PRESET,
        thread=THREAD.format(23552) + ", mended by " + THREAD.format(24743),
        mechanism=(
            "out_cache_loc_swa is not reset when the batch is padded: padded rows write"
            " their K and V into SWA slots that an earlier, fuller batch left there."
        ),
        caught_by="kv_parity",
        rows={"out_cache_loc_swa": {"policy": Policy.KEEP}},
    ),
    Bug(
        name="swa_int64",
        family=INDEX_DTYPE,
        era=Era.PRESET,
        thread=THREAD.format(23552) + ", mended by " + THREAD.format(24743),
        mechanism=(
            "out_cache_loc_swa is int64 while the pool's SWA locations are int32: the copy"
            " converts, but a store kernel with a fixed ABI reads every second half-word."
        ),
        caught_by="index_contract",
        rows={"out_cache_loc_swa": {"dtype": torch.int64}},
    ),
    Bug(
        name="req_pool_pad",
        family=STALE_INPUT,
        era=Era.MEMO,
        thread=THREAD.format(26292),
        mechanism=(
            "req_pool_indices is not reset when the batch is padded: the dummy attention of"
            " padded rows follows req_to_token of a stale row into freed or foreign KV."
        ),
        caught_by="hermetic_replay",
        rows={"req_pool_indices": {"policy": Policy.KEEP}},
    ),
    Bug(
        name="loc_memo_warning",
        family=MEMO,
        era=Era.MEMO,
        thread=_MEMO_THREADS,
        mechanism=(
            "25824 without 26152: nobody clears the memo around the window translation, so"
            " it takes turns with out_cache_loc's and the pool warns, every value being right:"
            " in every eager forward, and in a replay that no allocation precedes."
        ),
        caught_by="log_hygiene",
        without=("entry", "before_window", "after_window"),
    ),
    Bug(
        name="loc_memo_warning.entry",
        family=MEMO,
        era=Era.MEMO,
        thread=_MEMO_THREADS,
        mechanism="The memo is not cleared before a path is chosen.",
        caught_by=None,
        without=("entry",),
        masked_by="before_window clears the memo right before the window translation",
    ),
    Bug(
        name="loc_memo_warning.before_window",
        family=MEMO,
        era=Era.MEMO,
        thread=_MEMO_THREADS,
        mechanism=(
            "The memo is not cleared before the window translation. The capture of the next"
            " bucket, which has no entry, warns; no step does."
        ),
        caught_by=None,
        without=("before_window",),
        masked_by="entry clears the memo, and nothing translates between it and the window",
    ),
    Bug(
        name="loc_memo_warning.after_window",
        family=MEMO,
        era=Era.MEMO,
        thread=_MEMO_THREADS,
        mechanism=(
            "The memo is not cleared after the window translation: where Python then"
            " translates out_cache_loc (an eager forward), the pool warns."
        ),
        caught_by="log_hygiene",
        without=("after_window",),
    ),
    Bug(
        name="loc_memo_warning.entry+before_window",
        family=MEMO,
        era=Era.MEMO,
        thread=_MEMO_THREADS,
        mechanism=(
            "Nothing clears the memo before the window translation: after a forward that"
            " left a key, with no allocation in between (an idle step), the pool warns."
        ),
        caught_by="log_hygiene",
        without=("entry", "before_window"),
    ),
    Bug(
        name="loc_memo_warning.entry+after_window",
        family=MEMO,
        era=Era.MEMO,
        thread=_MEMO_THREADS,
        mechanism="As after_window alone: before_window hides what entry leaves.",
        caught_by="log_hygiene",
        without=("entry", "after_window"),
    ),
    Bug(
        name="loc_memo_warning.before_window+after_window",
        family=MEMO,
        era=Era.MEMO,
        thread=_MEMO_THREADS,
        mechanism="As after_window alone: entry hides what before_window leaves.",
        caught_by="log_hygiene",
        without=("before_window", "after_window"),
    ),
    Bug(
        name="loc_memo_capture",
        family=MEMO,
        era=Era.MEMO,
        thread=THREAD.format(25824),
        mechanism=(
            "The memo is not cleared at the top of the warm-up and capture runs: the capture"
            " hits what the warm-up left, no translation is recorded, and every replay writes"
            " to the SWA slots of the warm-up, silently."
        ),
        caught_by="kv_parity",
        without=("run_once",),
    ),
)

BUGS: Mapping[str, Bug] = {bug.name: bug for bug in _CATALOGUE}
"""Every bug of this build, by name."""


def clean_subject(runner: str, era: Era) -> Subject:
    """Return the right subject of a runner in an era."""
    return Subject(runner, contract(runner, era), Behaviour(era))


def broken_subject(bug: Bug, runner: str) -> Subject:
    """Return the runner with the bug switched on, in the era it lives in."""
    clean = clean_subject(runner, bug.era)
    return Subject(
        runner,
        override(clean.contract, bug.rows),
        Behaviour(bug.era, Invalidation().without(*bug.without)),
    )


def override(rows: Contract, changes: Mapping[str, Mapping[str, Any]]) -> Contract:
    """Return `rows` with fields of the named rows replaced. Raises KeyError for no such row."""
    unknown = changes.keys() - {row.name for row in rows}
    if unknown:
        raise KeyError(f"no static input called {', '.join(sorted(unknown))}")
    return tuple(replace(row, **changes.get(row.name, {})) for row in rows)
