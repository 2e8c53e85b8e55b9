"""The kinds of changes between two runs, for both kinds of records, and the verdict."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NEW, WORSE, OPEN, GONE = "new", "worse", "undecided", "gone"
STAYS, CHANGED, FIXED = "still there", "changed", "fixed"

KINDS: Mapping[str, str] = {
    NEW: "wrong in the later run; in the earlier run it was right, undecided or not tested",
    WORSE: "wrong in both runs; in the later run it is more severe or has another cause",
    OPEN: "the later run tested it but has no verdict",
    GONE: "wrong in the earlier run; the later run did not test it",
    STAYS: "wrong in both runs, for the same reason",
    CHANGED: "right in both runs, but the details differ",
    FIXED: "right in the later run; wrong in the earlier run",
}
"""The kinds of changes with their meanings, in the order in which they are shown."""

ALARMING = frozenset({NEW, WORSE})
"""The kinds that make the later run worse than the earlier one."""

LOST = frozenset({OPEN, GONE})
"""The kinds for which only the earlier run has a verdict."""

TONES: Mapping[str, str] = {FIXED: "good", CHANGED: "warn", OPEN: "warn", GONE: "warn"}


def tone(kind: str) -> str:
    """Return the colour of a kind of change: good, warn or bad."""
    return TONES.get(kind, "bad")


NOTHING = "nothing is new, worse, fixed or gone"

GRAVITY = (
    (
        "no_crash",
        "logits_parity",
        "token_trajectory",
        "next_tokens",
        "kv_parity",
        "dense_agreement",
    ),
    ("padding_noninterference", "batch_invariance", "determinism", "hermetic_replay"),
    ("write_frame", "read_frame", "padded_reads", "slot_ownership"),
    (),
    ("live_inputs", "index_contract", "captured_path", "declared_state"),
    ("log_hygiene",),
)
"""Properties by the severity of a violation: wrong results first, a log line last.

A property that is not listed is in the middle.
"""


def gravity(properties: Iterable[str]) -> int:
    """Return the severity of violations. 0 is the most severe."""
    middle = GRAVITY.index(())
    places = {name: place for place, names in enumerate(GRAVITY) for name in names}
    return min((places.get(name, middle) for name in properties), default=len(GRAVITY))


def counted(kinds: Iterable[str]) -> str:
    """Describe the number of changes of each kind that occurs, the most severe first."""
    counts = Counter(kinds)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    if set(counts) - {STAYS, CHANGED}:
        return said
    return f"{NOTHING} ({said})" if said else NOTHING


@dataclass(frozen=True)
class Name:
    """The parts of a run's name: commit, device and start time."""

    commit: str | None
    dirty: bool | None
    device: str
    started: str

    @property
    def short(self) -> str:
        """The name with commit and device."""
        commit = "an unrecorded commit" if self.commit is None else self.commit[:12]
        dirty = ", with uncommitted changes" if self.dirty else ""
        return f"{commit}{dirty}, on {self.device}"


def distinct_names(before: Name, after: Name) -> tuple[str, str]:
    """Return different names for the two runs of a comparison."""
    names = [before.short, after.short]
    if names[0] == names[1]:
        names = [f"{name.short}, {name.started}" for name in (before, after)]
    if names[0] == names[1]:
        names = [f"{names[0]} (earlier)", f"{names[1]} (later)"]
    return names[0], names[1]


def verdict(kinds: Sequence[str], *, lost: int) -> str:
    """Return the verdict of a comparison in a few words.

    `lost` is the number of further results that only the earlier run has.
    """
    if ALARMING & set(kinds):
        return "Worse"
    if LOST & set(kinds) or lost:
        return "No verdict"
    return "No worse"
