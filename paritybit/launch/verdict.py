"""The verdict of a run, from the outcomes of its configs.

| verdict | condition |
|---|---|
| finding | a check has a finding that is not known, however the run ended |
| undecided | a command failed, something could not be judged, or too little was watched |
| no finding | otherwise |
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paritybit.drive.operating.actions import COUNT, WHOLE
from paritybit.launch.ranks import absent, lagging
from paritybit.launch.schema import RecordedFinding, Untried, Verdict
from paritybit.launch.scope import PAIRS, SERVED_PAIRS
from paritybit.launch.tally import Tally
from paritybit.launch.words import causes_of, plural
from paritybit.watch.settings import ELAPSED, TAKEN

NEEDED: Mapping[str, str] = {
    "forwards": "no forward pass was checked",
    "reads": "no read of a KV slot was checked",
    "replays": "no graph was replayed",
}
"""Counts that must not be zero, with the message if one is. Some configurations, but not all, may
replay no graph."""

COUNTED: Mapping[str, str] = {
    "drafts": "no draft was verified",
    "accepted_drafts": "no draft was accepted",
    "rejected_drafts": "no draft was rejected",
    "state_reads": "no recurrent state was read",
}
"""Counts that must not be zero if an engine counts them."""

NO_ENGINE = (
    "no engine that the sanitizer supports was loaded; to connect another, see own-engine.md in "
    "'paritybit list pages'"
)

NOT_SERVED = "no configuration was served"
NOT_READY = "no engine was ready before the time was over; --seconds gives it more"

ENGINE_ERROR = "engine error"
"""The check whose finding says why an engine ended."""

LONGEST_LINE = 160
"""The most characters of the error of a command that failed."""

MOST_NAMED = 4
"""The most untested items in the line of the verdict."""


@dataclass(frozen=True)
class ConfigOutcome:
    """The outcome of a configuration: its tally, and how its command ended.

    - `starting`: the seconds until the engine was loaded.
    - `values`: the values of its settings, one per axis. Empty for a user's command.
    - `code`: the exit code, negative for a signal. None if nothing recorded it.
    - `replays`: whether it must have replayed a graph.
    - `stopped`: the command was asked to stop.
    - `too_long`: it was asked to stop because it did not end in time.
    - `log`, `error`: the file with its output, and the last error in that.
    """

    name: str
    arguments: tuple[str, ...]
    tally: Tally
    code: int | None
    seconds: float
    replays: bool = True
    stopped: bool = False
    too_long: bool = False
    log: str | None = None
    error: str = ""
    values: tuple[str, ...] = ()
    starting: float = 0.0

    @property
    def short(self) -> bool:
        """Whether the time was over before enough was served."""
        return self.tally.counts().get(WHOLE) == 0

    @property
    def judged(self) -> bool:
        """Whether a finding says why the engine ended."""
        errors = (one for one in self.tally.findings.values() if one.check == ENGINE_ERROR)
        return self.code == 1 and bool(self.values) and any(errors)


def ending(outcome: ConfigOutcome) -> str:
    """Return how a command ended, as the predicate of a sentence."""
    if outcome.too_long:
        return f"did not end within {outcome.seconds:.0f} s"
    if outcome.stopped:
        return "was stopped"
    if outcome.code is None:
        return "has no recorded end"
    if outcome.code < 0:
        return f"was killed by {signal_name(-outcome.code)}"
    return "ended" if outcome.code == 0 else f"failed by itself with exit code {outcome.code}"


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def open_questions(outcomes: Sequence[ConfigOutcome]) -> Iterator[str]:
    """Yield the reasons why a run without a finding has no verdict."""
    for outcome in outcomes:
        which = "the command" if len(outcomes) == 1 and outcome.log is None else outcome.name
        failed = outcome.code != 0 and not outcome.stopped and not outcome.judged
        if outcome.too_long or failed:
            see = f" (see {outcome.log})" if outcome.log else ""
            itself = outcome.code is not None and outcome.code > 0
            error = f": {outcome.error[:LONGEST_LINE]}" if outcome.error and itself else ""
            yield f"{which} {ending(outcome)}{error}{see}"
    for outcome in outcomes:
        yield from outcome.tally.undecided
        yield from rank_questions(outcome)
        if outcome.short:
            continue
        counts = outcome.tally.counts()
        for name, sentence in COUNTED.items():
            if counts.get(name) == 0:
                yield sentence if len(outcomes) == 1 else f"{sentence} in {outcome.name}"
                break
    if not any(one.tally.started for one in outcomes):
        late = all(one.values and one.code == 0 for one in outcomes)
        yield NOT_SERVED if not outcomes else NOT_READY if late else NO_ENGINE
        return
    nowhere = [
        sentence
        for name, sentence in NEEDED.items()
        if not any(outcome.tally.count(name) for outcome in outcomes)
    ]
    yield from nowhere
    for outcome in outcomes:
        missing = [sentence for sentence in missing_counts(outcome) if sentence not in nowhere]
        if missing and outcome.code == 0 and not (outcome.stopped or outcome.short):
            yield f"{missing[0]} in {outcome.name}"


def rank_questions(outcome: ConfigOutcome) -> Iterator[str]:
    """Yield what is open about single ranks. A total would hide that one of them had nothing."""
    tally = outcome.tally
    counts, ranks = tally.of_ranks(), [*tally.agreement.ranks.values()]
    for name in absent(ranks):
        yield f"rank {name} was never watched"
    yield from (f"rank {name} died before the other ranks ended" for name in tally.died)
    for one in tally.processes.values():
        if one.waits and one.started is not None and one.started.rank not in tally.died:
            at = f" at {one.waits['line']}" if one.waits.get("line") else ""
            yield f"rank {one.started.rank} waits in forward {one.waits['forward']}{at}"
    if outcome.short:
        return
    for name, sentence in NEEDED.items():
        if tally.count(name):
            yield from (
                f"{sentence} in rank {rank}" for rank in counts if not counts[rank].get(name)
            )
    yield from lagging(counts, [rank for rank, _ in ranks])


def missing_counts(outcome: ConfigOutcome) -> Iterator[str]:
    """Yield the message for each count that is zero and must not be."""
    for name, sentence in NEEDED.items():
        if not outcome.tally.count(name) and (outcome.replays or name != "replays"):
            yield sentence


def verdict_of(
    findings: Sequence[RecordedFinding],
    open_: Sequence[str],
    counts: Mapping[str, int],
    not_tried: Sequence[Untried],
    interrupted: str | None,
) -> tuple[Verdict, str]:
    """Return the verdict, and the line that states it with its scope."""
    seen = scope_of(counts)
    known = [finding for finding in findings if finding.known is not None]
    findings = [finding for finding in findings if finding.known is None]
    if known:
        seen = f"{seen}; {plural(sum(one.number for one in known), 'known finding')}"
    if findings:
        causes = plural(len(causes_of(findings)), "cause")
        number = sum(finding.number for finding in findings)
        return "finding", f"{plural(number, 'finding')} with {causes} in {seen}"
    if open_:
        more = f"; and {len(open_) - 1} more" if len(open_) > 1 else ""
        scope = f"; no finding in {seen}" if counts.get("forwards") else ""
        return "undecided", f"{open_[0]}{more}{scope}"
    if interrupted is not None:
        return "undecided", f"interrupted ({interrupted}); no finding in {seen}"
    names = [one.what for one in not_tried[:MOST_NAMED]]
    rest = len(not_tried) - len(names)
    missing = f"; not tried: {', '.join(names)}{f' and {rest} more' if rest else ''}"
    return "no finding", f"no finding in {seen}{missing if names else ''}"


def scope_of(counts: Mapping[str, int]) -> str:
    """Return a text with the amount that was watched."""

    def count(name: str) -> int:
        return counts.get(name, 0)

    if not count("forwards"):
        return "no forward pass"
    actions = sum(number for name, number in counts.items() if name.startswith(COUNT))
    return (
        f"{plural(count('forwards'), 'forward')}, {plural(count('replays'), 'replay')} "
        f"({count('padded_replays'):,} padded), {plural(count('reads'), 'read')} "
        f"({count('shared_reads'):,} shared)"
        + (
            f", {plural(count('drafts'), 'draft')} ({count('accepted_drafts'):,} accepted, "
            f"{count('rejected_drafts'):,} rejected)"
            if "drafts" in counts
            else ""
        )
        + (
            f", {count('copies begun'):,} copies of KV ({plural(count('copied_reads'), 'read')})"
            if "copies begun" in counts
            else ""
        )
        + (f", {plural(count('state_reads'), 'state read')}" if "state_reads" in counts else "")
        + (f", {plural(actions, 'action')}" if actions else "")
        + (f", {count(TAKEN) / count(ELAPSED):.1%} of the time" if count(ELAPSED) else "")
        + (f", {count(SERVED_PAIRS)} of {count(PAIRS)} {PAIRS}" if PAIRS in counts else "")
    )
