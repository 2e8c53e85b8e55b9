"""Fault classes of an engine, told by what it does. No version, no toggle, no source is read."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What a trial says of a fault on a runner."""

    PRESENT = "present"
    ABSENT = "absent"
    UNDECIDED = "undecided"


FAULTS = {
    "swa_pad": "a padded replay writes KV outside its own slots and slot 0",
    "swa_int64": "the SWA store is given locations in another dtype than the pool translates to",
    "req_pool_pad": "what padded rows are told to read depends on what the runner ran before",
}
"""The fault classes that an engine's behaviour can tell, and what tells each."""


@dataclass(frozen=True)
class Judged:
    """A verdict on one fault and runner, on how many observations it stands, and why."""

    fault: str
    runner: str
    verdict: Verdict
    observations: int
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON data."""
        return asdict(self)


@dataclass
class Observed:
    """Observations of one runner by fault: how many, and the first that shows the fault.

    `faults` are those that its trial could show.
    """

    runner: str
    faults: tuple[str, ...] = tuple(FAULTS)
    counts: dict[str, int] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)

    def add(self, fault: str, message: str | None, times: int = 1) -> None:
        """Count observations that could have shown a fault; `told` says how one did."""
        self.counts[fault] = self.counts.get(fault, 0) + times
        if message is not None:
            self.shown.setdefault(fault, message)

    def lacks(self, fault: str, message: str) -> None:
        """Say why a fault has nowhere to live in this runner."""
        self.lacking[fault] = message

    def judge(self) -> list[Judged]:
        """Return the verdict on each fault. What was never observed is undecided."""
        found = []
        for fault in self.faults:
            count = self.counts.get(fault, 0)
            if fault in self.shown:
                verdict, message = Verdict.PRESENT, self.shown[fault]
            elif count:
                verdict, message = Verdict.ABSENT, f"none of {count} observations shows it"
            elif fault in self.lacking:
                verdict, message = Verdict.ABSENT, self.lacking[fault]
            else:
                verdict, message = Verdict.UNDECIDED, "nothing was observed that could show it"
            found.append(Judged(fault, self.runner, verdict, count, message))
        return found


def overall(judged: list[dict[str, Any]], fault: str, runner: str | None = None) -> Verdict:
    """Return what verdicts say of a fault, on all runners or on one."""
    verdicts = {
        each["verdict"]
        for each in judged
        if each["fault"] == fault and runner in {None, each["runner"]}
    }
    return next(
        (each for each in (Verdict.PRESENT, Verdict.ABSENT) if each in verdicts),
        Verdict.UNDECIDED,
    )
