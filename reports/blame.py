"""Describes the cause of a finding: the runner whose forward fails, the suspect, and where.

The terminal, the page and the Markdown summary use the same words.
"""

import re
from collections.abc import Sequence

from paritybit.harness.explain.facts import (
    CAPTURE,
    Explanation,
    How,
    SourceLine,
    TimelineEntry,
    Writer,
    WrongElement,
)
from paritybit.harness.records.schema import Environment, Finding
from paritybit.reports.drawings.static_inputs import source_text
from paritybit.reports.texts import Piece

EAGER = "an eager forward"

NOT_KNOWN = "not known"


def failing_runner(
    explanation: Explanation | None, timeline: Sequence[TimelineEntry], step: int
) -> str:
    """Return the runner whose forward fails, an eager forward, or none.

    `step` is the place of the violation. An explanation may have a more exact one.
    """
    cause = None if explanation is None else explanation.cause
    if cause is not None and cause.name == "overlapping steps":
        return "the host, which runs ahead"
    if explanation is not None and explanation.at.runner is not None:
        return explanation.at.runner
    at = step if explanation is None else explanation.at.step
    entry = next((entry for entry in timeline if entry.place == at), None)
    if entry is None:
        return NOT_KNOWN
    if entry.mode is None:
        return f"no forward ({entry.step})"
    return entry.runner or EAGER


def runner_of(finding: Finding | None, tried: str) -> str:
    """Return the runner whose forward fails. Without a finding it is `tried`."""
    if finding is None or not finding.violations:
        return tried
    return failing_runner(finding.explanation, finding.timeline, finding.violations[0].step)


def runner_words(finding: Finding | None, tried: str) -> str:
    """Name the runner that fails, and the runner under test if it is another."""
    found = runner_of(finding, tried)
    return found if found == tried else f"{found}, in a trial of {tried}"


def to_blame(explanation: Explanation, runner: str) -> str:
    """Return the cause with its elements and the runner, or what is known without a cause."""
    cause = explanation.cause
    if cause is None:
        return f"{NOT_KNOWN}, in {runner}: {_first_seen(explanation)}"
    if not cause.elements:
        return f"{cause.name}, in {runner}: {explanation.property_id} holds without it"
    more = len(cause.elements) - 1
    rest = f", and {more} more element{'s' * (more > 1)}" if more else ""
    return f"{cause.name}, in {runner}: {_of_element(cause.elements[0])}{rest}"


def culprit(explanation: Explanation) -> str:
    """Return a name of the cause. Findings with the same name and runner share a cause."""
    cause, sources = explanation.cause, explanation.sources
    if cause is not None:
        holders = dict.fromkeys(one.holder for one in cause.elements)
        return " ".join([cause.name, ", ".join(holders)]).strip()
    if explanation.difference is not None:
        return f"{explanation.property_id}, first seen in {explanation.difference.op}"
    where = f" in {sources[0].file}" if sources else ""
    return f"{explanation.property_id}{where}"


def _first_seen(explanation: Explanation) -> str:
    """Describe the first difference, or name the property without one."""
    taken, found = explanation.taken, explanation.difference
    if taken is not None and taken.right is not None:
        slot = "no slot" if taken.slot is None else f"slot {taken.slot}"
        return f"row {taken.row} uses {slot}; expected {taken.right}"
    if found is not None:
        row = "" if found.row is None else f", {found.rows} {found.row}"
        return f"the first difference is in {found.op}{row}, element {found.element}"
    return f"{explanation.property_id} does not hold"


def _of_element(one: WrongElement) -> str:
    if one.left_by is None:
        return f"{one.name} = {one.value}; expected: {one.right}"
    by = _left(one.left_by, one.how, stale=one.stale)
    return f"{one.name} = {one.value}, {by}; expected: {one.right}"


def _left(writer: Writer, how: How | None, *, stale: bool) -> str:
    """Describe when an element got its value. `how` is None for a view of an earlier output."""
    if how is None:
        return f"a view of an output of {writer_words(writer)}"
    if stale or how == "capture":
        return f"left there by {writer_words(writer, how)}"
    if how == "equalized":
        return f"not written in step {writer.step}: it is {HOW[how]}"
    return f"written in step {writer.step}, {HOW[how]}"


HOW: dict[How, str] = {
    "copied": "copied from its batch",
    "reset": "reset as padding",
    "equalized": "the harness's poison value",
    "capture": "unchanged since the capture",
}
"""How a static element got its value."""


def writer_words(writer: Writer, how: How | None = None) -> str:
    """Name a step, its runner, and whether its row is live or padding, if known.

    `how` is how a static element was written, or None for the row of an op.
    """
    if writer.step == CAPTURE:
        return source_text(writer.step)
    by, whose = writer.runner or "eager forward", ""
    if writer.request is not None:
        whose = f" (request {writer.request})"
    elif how in (None, "reset"):
        whose = " (padding)"
    return f"{source_text(writer.step)}, {by}, {writer.place}{whose}"


def lines_of(finding: Finding | None) -> tuple[SourceLine, ...]:
    """Return the lines of code for a finding, the nearest to its cause first."""
    if finding is None or finding.explanation is None:
        return ()
    return finding.explanation.sources


def linked_line(line: SourceLine, environment: Environment) -> Piece:
    """Return a line as `file:line`, with a link if commit and repository are known."""
    text, commit = f"{line.file}:{line.line}", environment.commit or ""
    repository = environment.repository or ""
    known = re.fullmatch("[0-9a-f]{7,64}", commit) and REPOSITORY.fullmatch(repository)
    href = f"{repository}/blob/{commit}/{line.file}#L{line.line}" if known else ""
    return Piece(text, href)


REPOSITORY = re.compile(r"https://[\w.-]+(?::\d+)?(?:/[\w.~-]+)+")
"""A public repository address: no user, no query, no characters with a meaning in markup."""
