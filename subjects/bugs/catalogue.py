"""The catalogue: every historical bug as a named, documented difference from what is right."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from subjects.contracts import Policy
from subjects.engine import Changes, Subject, contract, override
from subjects.runners import RUNNERS
from subjects.toggles import LocationScheme, Toggles

THREAD = "https://github.com/sgl-project/sglang/pull/{}"


@dataclass(frozen=True)
class Bug:
    """One bug: where it was seen, how it works, and how it differs from what is right.

    `family` is the kind of fault it is. `era` is the one it is hunted in, `also_in` names others
    that its mechanism is independent of. `rows` replaces fields of contract rows, in all
    runners that share the buffer if `in_shared`. `without` drops invalidation sites,
    `behaviour` replaces further fields of `Behaviour`.
    `caught_by` names the property that must see it; `masked_by` says, for a
    difference that shows nowhere, which other site hides it. `needs` names static inputs
    without which a runner has nothing that could differ, beside those of `rows`.
    `in_traffic` says whether recorded traffic, where an engine idles only once all requests
    have left, reaches what shows it.
    """

    name: str
    family: str
    scheme: LocationScheme
    thread: str
    mechanism: str
    detected_by: str | None
    rows: Changes = field(default_factory=dict)
    in_shared: bool = False
    without: tuple[str, ...] = ()
    toggles: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    in_traffic: bool = True
    masked_by: str | None = None
    also_in: tuple[LocationScheme, ...] = ()

    @property
    def schemes(self) -> tuple[LocationScheme, ...]:
        """Every era that it can live in, the one it is hunted in first."""
        return (self.scheme, *self.also_in)


STALE_INPUT = "stale static input in padded rows"
INDEX_DTYPE = "index dtype"
SLOT_SPACE = "index of the wrong sub-pool"
SLOW_PATH = "captured path"
MEMO = "memo that outlives its key"

_MEMO_THREADS = THREAD.format(25824) + ", mended by " + THREAD.format(26152)

_CATALOGUE = (
    Bug(
        name="swa_pad",
        family=STALE_INPUT,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552) + ", mended by " + THREAD.format(24743),
        mechanism=(
            "out_cache_loc_swa is not reset when the batch is padded: padded rows write"
            " their K and V into SWA slots that an earlier, fuller batch left there."
        ),
        detected_by="kv_parity",
        rows={"out_cache_loc_swa": {"policy": Policy.KEEP}},
    ),
    Bug(
        name="swa_int64",
        family=INDEX_DTYPE,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552) + ", mended by " + THREAD.format(24743),
        mechanism=(
            "out_cache_loc_swa is int64 while the pool's SWA locations are int32: the copy"
            " converts, but a store kernel with a fixed ABI reads every second half-word."
        ),
        detected_by="index_contract",
        rows={"out_cache_loc_swa": {"dtype": torch.int64}},
        in_shared=True,
    ),
    Bug(
        name="req_pool_pad",
        family=STALE_INPUT,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(26292),
        mechanism=(
            "req_pool_indices is not reset when the batch is padded: the dummy attention of"
            " padded rows follows req_to_token of a stale row into freed or foreign KV."
        ),
        detected_by="hermetic_replay",
        rows={"req_pool_indices": {"policy": Policy.KEEP}},
        also_in=(LocationScheme.PER_LAYER, LocationScheme.PRESET),
    ),
    Bug(
        name="loc_memo_warning",
        family=MEMO,
        scheme=LocationScheme.MEMO,
        thread=_MEMO_THREADS,
        mechanism=(
            "25824 without 26152: nobody clears the memo around the window translation, so"
            " it takes turns with out_cache_loc's and the pool warns, every value being right:"
            " in every eager forward, and in a replay that no allocation precedes."
        ),
        detected_by="log_hygiene",
        without=("entry", "before_window", "after_window"),
    ),
    Bug(
        name="loc_memo_warning.entry",
        family=MEMO,
        scheme=LocationScheme.MEMO,
        thread=_MEMO_THREADS,
        mechanism="The memo is not cleared before a path is chosen.",
        detected_by=None,
        without=("entry",),
        masked_by="before_window clears the memo right before the window translation",
    ),
    Bug(
        name="loc_memo_warning.before_window",
        family=MEMO,
        scheme=LocationScheme.MEMO,
        thread=_MEMO_THREADS,
        mechanism=(
            "The memo is not cleared before the window translation. The capture of the next"
            " bucket, which has no entry, warns; no step does."
        ),
        detected_by=None,
        without=("before_window",),
        masked_by="entry clears the memo, and nothing translates between it and the window",
    ),
    Bug(
        name="loc_memo_warning.after_window",
        family=MEMO,
        scheme=LocationScheme.MEMO,
        thread=_MEMO_THREADS,
        mechanism=(
            "The memo is not cleared after the window translation: where Python then"
            " translates out_cache_loc (an eager forward), the pool warns."
        ),
        detected_by="log_hygiene",
        without=("after_window",),
    ),
    Bug(
        name="loc_memo_warning.entry+before_window",
        family=MEMO,
        scheme=LocationScheme.MEMO,
        thread=_MEMO_THREADS,
        mechanism=(
            "Nothing clears the memo before the window translation: after a forward that"
            " left a key, with no allocation in between (an idle step), the pool warns."
        ),
        detected_by="log_hygiene",
        without=("entry", "before_window"),
        in_traffic=False,
    ),
    Bug(
        name="loc_memo_warning.entry+after_window",
        family=MEMO,
        scheme=LocationScheme.MEMO,
        thread=_MEMO_THREADS,
        mechanism="As after_window alone: before_window hides what entry leaves.",
        detected_by="log_hygiene",
        without=("entry", "after_window"),
    ),
    Bug(
        name="loc_memo_warning.before_window+after_window",
        family=MEMO,
        scheme=LocationScheme.MEMO,
        thread=_MEMO_THREADS,
        mechanism="As after_window alone: entry hides what before_window leaves.",
        detected_by="log_hygiene",
        without=("before_window", "after_window"),
    ),
    Bug(
        name="loc_memo_capture",
        family=MEMO,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(25824),
        mechanism=(
            "The memo is not cleared at the top of the warm-up and capture runs: the capture"
            " hits what the warm-up left, no translation is recorded, and every replay writes"
            " to the SWA slots of the warm-up, silently."
        ),
        detected_by="kv_parity",
        without=("run_once",),
    ),
    Bug(
        name="swa_loc_unset",
        family=SLOW_PATH,
        scheme=LocationScheme.PRESET,
        thread=THREAD.format(23552),
        mechanism=(
            "swa_loc is not set before the capture: every value is right, but the graph holds"
            " the slow path, a full-to-SWA translation in every SWA layer, as before 23552."
        ),
        detected_by="captured_path",
        toggles={"preset_at_capture": False},
        needs=("out_cache_loc_swa",),
    ),
    Bug(
        name="spec_page_table_untranslated",
        family=SLOT_SPACE,
        scheme=LocationScheme.MEMO,
        thread=THREAD.format(24617),
        mechanism=(
            "The page table of a tree verify is not translated for SWA layers: they read the"
            " keys of full slots from the SWA sub-pool, where those slots are other requests'."
        ),
        detected_by="logits_parity",
        toggles={"translate_page_table": False},
        needs=("custom_mask",),
    ),
    Bug(
        name="shared_buffer_dtype",
        family=INDEX_DTYPE,
        scheme=LocationScheme.PRESET,
        thread="https://github.com/sgl-project/sglang (shared static buffers, from 0.5.11 on)",
        mechanism=(
            "One runner wants positions as int32 while the buffer of that name, which the"
            " others share, is int64: the pool of static buffers refuses to be built. A runner"
            " that has its buffers to itself converts on every copy instead."
        ),
        detected_by="index_contract",
        rows={"positions": {"dtype": torch.int32}},
    ),
)

BUGS: Mapping[str, Bug] = {bug.name: bug for bug in _CATALOGUE}
"""Every bug of this build, by name."""


def unaffected_reason(bug: Bug, runner: str) -> str | None:
    """Return why `bug` cannot harm `runner`, or None if it can.

    Raises KeyError for a pair that no one has decided.
    """
    kind = RUNNERS[runner]
    if bug.name in kind.affected_by:
        return None
    if bug.name in kind.unaffected:
        return kind.unaffected[bug.name]
    missing = missing_inputs(bug, runner)
    if bug.masked_by is not None:
        return bug.masked_by
    if missing:
        return f"it has no static input {', '.join(missing)}"
    raise KeyError(f"whether {bug.name} can harm {runner} is not decided")


def runners_of(bug: Bug) -> tuple[str, ...]:
    """Return the runners that `bug` can harm."""
    return tuple(name for name in RUNNERS if unaffected_reason(bug, name) is None)


def missing_inputs(bug: Bug, runner: str) -> list[str]:
    """Return the static inputs that `bug` is about and `runner` lacks: it cannot be switched on."""
    rows = {row.name for row in contract(RUNNERS[runner], bug.scheme)}
    return sorted({*bug.rows, *bug.needs} - rows)


def clean_subject(runner: str, scheme: LocationScheme) -> Subject:
    """Return the right subject of a runner in an era."""
    return Subject(runner, contract(RUNNERS[runner], scheme), Toggles(scheme))


def broken_subject(bugs: Iterable[Bug], runner: str, scheme: LocationScheme) -> Subject:
    """Return the runner with bugs switched on, one difference upon the other.

    Raises KeyError for a runner that lacks what a bug is about.
    """
    subject = clean_subject(runner, scheme)
    for bug in bugs:
        subject = switched_on(bug, subject)
    return subject


def switched_on(bug: Bug, subject: Subject) -> Subject:
    """Return a subject with one bug more. Raises KeyError as `broken_subject` does."""
    missing = missing_inputs(bug, subject.runner)
    if missing:
        raise KeyError(f"{subject.runner} has no static input called {', '.join(missing)}")
    toggles = subject.toggles
    return replace(
        subject,
        contract=override(subject.contract, bug.rows),
        toggles=replace(
            toggles,
            memo_resets=toggles.memo_resets.without(*bug.without),
            **bug.toggles,
        ),
        shared=shared_with(bug, subject),
    )


def shared_with(bug: Bug, subject: Subject) -> Changes:
    """Return what a subject changes in the buffers of others once it has one bug more."""
    if not (bug.in_shared and RUNNERS[subject.runner].shares_buffers):
        return subject.shared
    before = subject.shared
    changed = {name: {**before.get(name, {}), **fields} for name, fields in bug.rows.items()}
    return {**before, **changed}


def common_scheme(bugs: Iterable[Bug]) -> LocationScheme:
    """Return the era that bugs are tried in together: the first one's own where all can live in it.

    Raises ValueError for bugs that no era has together.
    """
    wanted = list(bugs)
    for scheme in (scheme for bug in wanted for scheme in bug.schemes):
        if all(scheme in bug.schemes for bug in wanted):
            return scheme
    message = ", ".join(f"{bug.name} in {' or '.join(bug.schemes)}" for bug in wanted)
    raise ValueError(f"bugs of different eras cannot be switched on together: {message}")
