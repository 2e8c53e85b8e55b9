"""Fault classes of an engine: the property that shows each, and the evidence that must hold.

A fault class is told by what the engine does. No version, no toggle, no source is read.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from harness.checks.of_steps.write_frame import writes_outside_frame
from harness.lockstep.observation import Observation
from reference.config import Kind

Seen = Callable[[Observation], bool]


class Verdict(StrEnum):
    """What a trial says of a fault on a runner."""

    PRESENT = "present"
    ABSENT = "absent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Fault:
    """A fault class: present where `property` is violated and the observation `shows` it.

    `could_show` says whether an observation had the means to. Where none had, but replays
    were seen, the fault has `nowhere` to live, for that reason; without one it is undecided.
    `follows` are properties that it also breaks.
    """

    statement: str
    property: str
    could_show: Seen
    shows: Seen
    nowhere: str | None = None
    follows: frozenset[str] = frozenset()


def padded(observation: Observation) -> bool:
    """Whether a padded replay was observed."""
    return observation.replay is not None and observation.replay.padded


def writes_foreign_swa_slots(observation: Observation) -> bool:
    """Whether a padded replay wrote SWA slots that are neither the batch's nor slot 0."""
    if not padded(observation):
        return False
    written = writes_outside_frame(observation, observation.graph)
    arenas = observation.layout.arenas_of(written)
    return any(bool(arena.any()) for _, kind, arena in arenas if kind is Kind.SWA)


def hands_locations_over(observation: Observation) -> bool:
    """Whether it was seen in which dtype SWA write locations are handed over."""
    return observation.facts is not None and observation.facts.locations is not None


def hands_over_another_dtype(observation: Observation) -> bool:
    """Whether the SWA write locations are of another dtype than the pool's translation."""
    locations = observation.facts.locations if observation.facts is not None else None
    return locations is not None and locations.handed != locations.translated


def padded_rows_depend_on_history(observation: Observation) -> bool:
    """Whether a padded row was told to read other slots than in an engine just captured."""
    replay, fresh = observation.replay, observation.extra.get("hermetic_replay")
    if replay is None or fresh is None:
        return False
    return any(
        rows[replay.live_size :] != fresh.reads[kind][replay.live_size :]
        for kind, rows in replay.reads.items()
    )


FAULTS: Mapping[str, Fault] = {
    "swa_pad": Fault(
        statement="a padded replay writes KV to SWA slots that are neither its own nor slot 0",
        property="write_frame",
        could_show=padded,
        shows=writes_foreign_swa_slots,
        follows=frozenset(
            {
                "kv_parity",
                "logits_parity",
                "hermetic_replay",
                "token_trajectory",
                "dense_agreement",
            }
        ),
    ),
    "swa_int64": Fault(
        statement="SWA write locations are of another dtype than the pool's own translation",
        property="index_contract",
        could_show=hands_locations_over,
        shows=hands_over_another_dtype,
        nowhere="it hands no SWA write locations over",
    ),
    "req_pool_pad": Fault(
        statement="what padded rows are told to read depends on what the runner ran before",
        property="hermetic_replay",
        could_show=padded,
        shows=padded_rows_depend_on_history,
        follows=frozenset({"read_frame"}),
    ),
}
"""The fault classes that an engine's behaviour can tell."""


def faults_shown(property_id: str, observation: Observation) -> list[str]:
    """Return the fault classes that an observation shows, which violates a property."""
    return [
        name
        for name, fault in FAULTS.items()
        if fault.property == property_id and fault.shows(observation)
    ]


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
class Evidence:
    """What was observed of one runner, by fault: how often, and the first that shows it.

    `asked` are the properties that were asked of it.
    """

    runner: str
    asked: set[str] = field(default_factory=set)
    replays: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    shown: dict[str, str] = field(default_factory=dict)
    unexplained: dict[str, str] = field(default_factory=dict)

    def see(self, observation: Observation, asked: Collection[str]) -> None:
        """Count a replay for the faults that it could have shown, asked these properties."""
        if observation.replay is None:
            return
        self.asked.update(asked)
        self.replays += 1
        self.counts.update(
            name
            for name, fault in FAULTS.items()
            if fault.property in asked and fault.could_show(observation)
        )

    def add(self, property_id: str, message: str, faults: Collection[str]) -> None:
        """Book a violation under the fault classes that its observation shows."""
        for name in faults:
            self.shown.setdefault(name, message)
        if not faults:
            self.unexplained.setdefault(property_id, message)

    def judge(self) -> list[Judged]:
        """Return the verdict on each fault whose property was asked."""
        return [
            self._judge(name, fault)
            for name, fault in FAULTS.items()
            if fault.property in self.asked
        ]

    def _judge(self, name: str, fault: Fault) -> Judged:
        count = self.counts[name]
        if name in self.shown:
            verdict, message = Verdict.PRESENT, self.shown[name]
        elif count:
            verdict, message = Verdict.ABSENT, f"none of {count} observations shows it"
        elif self.replays and fault.nowhere is not None:
            verdict, message = Verdict.ABSENT, fault.nowhere
        else:
            verdict, message = Verdict.UNDECIDED, "nothing was observed that could show it"
        return Judged(name, self.runner, verdict, count, message)

    def findings(self) -> list[str]:
        """Return, in words, each violated property that no fault class explains."""
        follows = {prop for name in self.shown for prop in FAULTS[name].follows}
        return [
            f"{self.runner} violates {name}, which no fault class explains: {message}"
            for name, message in self.unexplained.items()
            if name not in follows
        ]


def overall(
    judged: Collection[Mapping[str, Any]], fault: str, runner: str | None = None
) -> Verdict:
    """Return what verdicts say of a fault, on all runners or on one."""
    verdicts = {
        entry["verdict"]
        for entry in judged
        if entry["fault"] == fault and runner in {None, entry["runner"]}
    }
    return next(
        (verdict for verdict in (Verdict.PRESENT, Verdict.ABSENT) if verdict in verdicts),
        Verdict.UNDECIDED,
    )
