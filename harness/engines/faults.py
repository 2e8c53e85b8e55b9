"""Fault classes of an engine: the properties that show each, and the evidence that must hold.

A fault class is told by what the engine does. No version, no toggle, no source is read.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paritybit.harness.engines.evidence import (
    REQUEST_ROWS,
    SWA_LOCATIONS,
    Seen,
    hands_locations_over,
    hands_over_another_dtype,
    has_input,
    padded_rows_are_requests,
    tail_was_used,
    writes_foreign_swa_slots_alone,
)
from paritybit.harness.lockstep.observation import Observation

from paritybit.compat import StrEnum

OF_CONTENTS = frozenset(
    {
        "kv_parity",
        "logits_parity",
        "hermetic_replay",
        "token_trajectory",
        "dense_agreement",
        "padding_noninterference",
    }
)
"""Properties of KV and outputs, which a fault breaks that shows elsewhere as well."""


class Verdict(StrEnum):
    """What a trial says of a fault on a runner, or of all that it asked."""

    PRESENT = "present"
    ABSENT = "absent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Fault:
    """A fault class: present where one of `properties` is violated and the observation `shows` it.

    `lives` says whether a runner has what the fault is about. If it has not, the fault is absent
    from it, and `nowhere` is the reason. Where `lacking` names runners, that is believed of these
    alone: any other must have it, and then has it by a name that is not known. `exposed` says
    whether the state that would show the fault was reached: only then does an observation that
    shows nothing speak for its absence. `follows` are properties that it also breaks.
    """

    statement: str
    properties: frozenset[str]
    lives: Seen
    exposed: Seen
    shows: Seen
    nowhere: str
    follows: frozenset[str] = frozenset()
    lacking: frozenset[str] | None = None


FAULTS: Mapping[str, Fault] = {
    "swa_pad": Fault(
        statement="padded rows keep an earlier batch's SWA write locations and write there",
        properties=frozenset({"write_frame"}),
        lives=has_input(SWA_LOCATIONS),
        exposed=tail_was_used(SWA_LOCATIONS),
        shows=writes_foreign_swa_slots_alone,
        nowhere="no batch gives it static SWA write locations",
        follows=OF_CONTENTS,
    ),
    "swa_int64": Fault(
        statement="SWA write locations have a different dtype than the pool's own translation",
        properties=frozenset({"index_contract"}),
        lives=hands_locations_over,
        exposed=hands_locations_over,
        shows=hands_over_another_dtype,
        nowhere="it passes on no SWA write locations",
        follows=frozenset({"live_inputs"}),
    ),
    "req_pool_pad": Fault(
        statement="padded rows keep an earlier batch's request rows and read KV through them",
        properties=frozenset({"hermetic_replay", "read_frame"}),
        lives=has_input(REQUEST_ROWS),
        exposed=tail_was_used(REQUEST_ROWS),
        shows=padded_rows_are_requests,
        nowhere="no batch gives it static request rows",
        lacking=frozenset({"piecewise", "breakable"}),
    ),
}
"""The fault classes that sglang's behaviour can tell."""


def present(judged: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the verdicts, as JSON data, by which a fault class is present."""
    return [one for one in judged if one["verdict"] == Verdict.PRESENT]


NAMING = frozenset({"live_inputs", "index_contract", "declared_padding"})
"""Properties whose violation names the static input that is wrong."""


def faults_shown(
    property_id: str, observation: Observation, faults: Mapping[str, Fault] = FAULTS
) -> list[str]:
    """Return the fault classes of some that an observation shows, which violates a property."""
    return [
        name
        for name, fault in faults.items()
        if property_id in fault.properties and fault.shows(observation)
    ]


@dataclass(frozen=True)
class Judged:
    """A verdict on one fault and runner, how often the state was reached that shows it, and why."""

    fault: str
    runner: str
    verdict: Verdict
    observations: int
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Finding:
    """A property that a leg violated, how first, and the fault classes whose evidence holds.

    `listed` says why a finding is known of every engine of its kind and is no verdict; `cause`
    is what a counterfactual run proved, if one did.
    """

    runner: str
    preset: str
    property: str
    message: str
    faults: tuple[str, ...] = ()
    listed: str | None = None
    cause: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON data."""
        return {**asdict(self), "faults": list(self.faults)}


@dataclass
class Evidence:
    """What was observed of one leg, by fault: how often, and the first that shows it.

    `faults` are the classes that the engine's behaviour can tell, `asked` are the properties
    that were asked of it; `violated` are how each of them first was.
    """

    runner: str
    faults: Mapping[str, Fault] = field(default_factory=lambda: FAULTS)
    asked: set[str] = field(default_factory=set)
    replays: int = 0
    living: Counter[str] = field(default_factory=Counter)
    exposed: Counter[str] = field(default_factory=Counter)
    shown: dict[str, str] = field(default_factory=dict)
    violated: dict[str, str] = field(default_factory=dict)
    unexplained: set[str] = field(default_factory=set)

    def see(self, observation: Observation, asked: Collection[str]) -> None:
        """Count a replay for the faults that it could have shown, asked these properties."""
        if observation.replay is None:
            return
        self.asked.update(asked)
        self.replays += 1
        for name, fault in self.faults.items():
            if fault.properties & set(asked):
                self.living[name] += fault.lives(observation)
                self.exposed[name] += fault.exposed(observation)

    def add(self, property_id: str, message: str, faults: Collection[str]) -> None:
        """Book a violation under the fault classes that its observation shows."""
        self.violated.setdefault(property_id, message)
        for name in faults:
            self.shown.setdefault(name, message)
        if not faults:
            self.unexplained.add(property_id)

    def judge(self) -> list[Judged]:
        """Return the verdict on each fault of which a property was asked."""
        return [
            self._judge(name, fault)
            for name, fault in self.faults.items()
            if fault.properties & self.asked
        ]

    def _judge(self, name: str, fault: Fault) -> Judged:
        count = self.exposed[name]
        if name in self.shown:
            verdict, message = Verdict.PRESENT, self.shown[name]
        elif count:
            verdict, message = Verdict.ABSENT, f"{count} replays could have shown it, and none did"
        elif self.replays and not self.living[name]:
            verdict, message = Verdict.ABSENT, fault.nowhere
            if fault.lacking is not None and self.runner not in fault.lacking:
                verdict, message = Verdict.UNDECIDED, f"{message} under a known name"
        else:
            verdict = Verdict.UNDECIDED
            message = f"none of {self.replays} replays could have shown it"
        return Judged(name, self.runner, verdict, count, message)

    def findings(self, preset: str) -> list[Finding]:
        """Return every violated property, with the fault classes that explain it, if any.

        Those come first that name what is wrong and not what it led to.
        """
        first = sorted(self.violated.items(), key=lambda item: item[0] not in NAMING)
        return [
            Finding(self.runner, preset, name, message, self._explaining(name))
            for name, message in first
        ]

    def _explaining(self, property_id: str) -> tuple[str, ...]:
        """Return the fault classes that were shown and that a violated property belongs to."""
        own = [name for name in self.shown if property_id in self.faults[name].properties]
        following = [name for name in self.shown if property_id in self.faults[name].follows]
        # What one observation left unexplained is not explained by another's evidence, unless
        # it follows from that.
        return tuple(following if property_id in self.unexplained else own + following)


def overall(
    judged: Collection[Mapping[str, Any]],
    undecided: Collection[str],
    fault: str,
    runner: str | None = None,
) -> Verdict:
    """Return what verdicts say of a fault, on all runners or on one.

    `undecided` are the runners of which something could not be tried: without a runner that
    shows it, they leave the fault undecided.
    """
    verdicts = {
        entry["verdict"]
        for entry in judged
        if entry["fault"] == fault and runner in {None, entry["runner"]}
    }
    if Verdict.PRESENT in verdicts:
        return Verdict.PRESENT
    open_runners = undecided if runner is None else {runner} & set(undecided)
    if open_runners or Verdict.UNDECIDED in verdicts or not verdicts:
        return Verdict.UNDECIDED
    return Verdict.ABSENT
