"""What can become of a finding from one run to the next, the gravest first, and what it comes to.

Knows neither of the two kinds of records that are compared.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NEW, WORSE, OPEN, GONE = "new", "worse", "undecided", "gone"
STAYS, CHANGED, MENDED = "still there", "changed", "fixed"

KINDS: Mapping[str, str] = {
    NEW: "wrong in the later run; in the earlier run it was right, undecided or not tested",
    WORSE: "wrong in both runs; in the later run it is more severe or has another cause",
    OPEN: "the later run tested it but has no verdict",
    GONE: "wrong in the earlier run; the later run did not test it",
    STAYS: "wrong in both runs, for the same reason",
    CHANGED: "right in both runs, but the details differ",
    MENDED: "right in the later run; wrong in the earlier run",
}
"""Kinds of changes in the order in which they are shown, and what each means."""

ALARMING = frozenset({NEW, WORSE})
"""What makes the later run worse than the earlier one."""

LOST = frozenset({OPEN, GONE})
"""What the earlier run could tell, and the later one cannot."""

TONES: Mapping[str, str] = {MENDED: "good", CHANGED: "warn", OPEN: "warn", GONE: "warn"}


def tone(kind: str) -> str:
    """Return how a kind of change is coloured: good, warn or bad."""
    return TONES.get(kind, "bad")


NOTHING = "nothing is new, worse, fixed or gone"

GRAVITY = (
    (
        "logits_parity",
        "token_trajectory",
        "next_tokens",
        "kv_parity",
        "frozen_kv",
        "dense_agreement",
    ),
    ("padding_noninterference", "batch_invariance", "determinism", "hermetic_replay"),
    ("write_frame", "read_frame", "padded_reads", "slot_ownership"),
    (),
    ("live_inputs", "index_contract", "captured_path", "declared_state"),
    ("log_hygiene",),
)
"""Properties by how grave it is that one is violated: wrong results first, a log line last.

A property that stands nowhere is in the middle.
"""


def gravity(properties: Iterable[str]) -> int:
    """Return how grave it is that these are violated: 0 for the gravest."""
    middle = GRAVITY.index(())
    places = {name: place for place, names in enumerate(GRAVITY) for name in names}
    return min((places.get(name, middle) for name in properties), default=len(GRAVITY))


def counted(kinds: Iterable[str]) -> str:
    """Say how many changes there are of each kind, the gravest first; none of which is not said."""
    counts = Counter(kinds)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    if set(counts) - {STAYS, CHANGED}:
        return said
    return f"{NOTHING} ({said})" if said else NOTHING


@dataclass(frozen=True)
class Name:
    """What tells a run from others: commit, device, what was tried, and when it began.

    `subject` and `started` are '' where they are not known or say nothing.
    """

    commit: str | None
    dirty: bool | None
    device: str
    subject: str = ""
    started: str = ""

    @property
    def short(self) -> str:
        """The run by what was tried, its commit and its device."""
        commit = "an unrecorded commit" if self.commit is None else self.commit[:12]
        dirty = ", with uncommitted changes" if self.dirty else ""
        subject = f"{self.subject}, tested by " if self.subject else ""
        return f"{subject}{commit}{dirty}, on {self.device}"


def distinct_names(before: Name, after: Name) -> tuple[str, str]:
    """Return what the two runs of a comparison are called."""
    names = [before.short, after.short]
    if names[0] == names[1]:
        names = [
            f"{name.short}, {name.started}" if name.started else name.short
            for name in (before, after)
        ]
    if names[0] == names[1]:
        names = [f"{names[0]} (earlier)", f"{names[1]} (later)"]
    return names[0], names[1]


def verdict(kinds: Sequence[str], *, lost: int) -> str:
    """Return in a few words what a comparison comes to.

    `lost` counts what else the earlier run could tell and the later one cannot.
    """
    if ALARMING & set(kinds):
        return "Worse"
    if LOST & set(kinds) or lost:
        return "No verdict"
    return "No worse"
