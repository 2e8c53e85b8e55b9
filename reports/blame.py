"""Describes the cause of a finding: the runner whose forward fails, what caused it, and where.

The terminal, the page and the Markdown summary use the same words.
"""

import re
from collections.abc import Iterator, Sequence

from paritybit.harness.explain.facts import (
    CAPTURE,
    Cause,
    Explanation,
    GivenValue,
    How,
    IndexOrigin,
    SourceLine,
    TimelineEntry,
    Writer,
)
from paritybit.harness.records.schema import Environment, Finding
from paritybit.reports.drawings.static_inputs import source_text
from paritybit.reports.texts import Piece

RACES = frozenset({"missing wait", "missing copy"})
"""Causes in the host of overlapping steps, which no single forward shows."""

EAGER = "an eager forward"

NOT_KNOWN = "not known"


def failing_runner(
    explanation: Explanation | None, timeline: Sequence[TimelineEntry], step: int
) -> str:
    """Return the runner whose forward fails, an eager forward, or none.

    `step` is the place of the violation. An explanation may have a more exact one.
    """
    if explanation is not None and explanation.cause.blame in RACES:
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
    """Return the cause with its element, table or code, and the runner."""
    cause = explanation.cause
    return f"{cause.blame}, in {runner}: {next(reasons(cause), 'the element is not known')}"


def culprits(cause: Cause) -> Iterator[str]:
    """Yield the buffers, tables, code and arguments of a cause, the most direct first."""
    if cause.site is not None:
        yield f"{cause.site.function} in {cause.site.file}"
    if cause.state is not None:
        yield cause.state.path
    if cause.index is not None and cause.index.buffer is not None:
        yield f"static input {cause.index.buffer}"
    if cause.cell is not None:
        yield f"table {cause.cell.table}"
    if cause.kept is not None:
        yield f"static output {cause.kept.output}, kept as {cause.kept.what}"
    if cause.baked is not None:
        yield f"{cause.baked.argument or cause.baked.op}, baked in at the capture"
    if cause.given is not None:
        yield cause.given.what.partition("[")[0]
    if cause.held is not None:
        yield cause.held.what
    if cause.difference is not None:
        yield f"{cause.blame}, first seen in {cause.difference.op}"


def reasons(cause: Cause) -> Iterator[str]:
    """Yield descriptions of what is wrong, with element and step, the most direct first."""
    if cause.site is not None:
        yield f"{cause.site.function}: {cause.site.message}"
    if cause.state is not None:
        state = cause.state
        yield f"{state.path} is {state.now}, and was {state.captured} after the capture"
    if cause.index is not None and cause.index.buffer is not None:
        yield _of_index(cause.index)
    if cause.given is not None:
        yield _of_given(cause.given)
    if cause.cell is not None:
        cell = cause.cell
        place = ", ".join(map(str, cell.place))
        since = source_text(cell.since)
        yield f"{cell.table}[{place}] = {cell.value} since {since}; expected {cell.right}"
    if cause.kept is not None:
        kept = cause.kept
        yield f"{kept.what} is a view of {kept.output}, row {kept.row}, of step {kept.step}"
    if cause.baked is not None:
        baked = cause.baked
        what = baked.op if baked.argument is None else f"{baked.argument} of {baked.op}"
        yield (
            f"the graph has had {baked.value} for {what} since its capture; expected {baked.right}"
        )
    if cause.held is not None:
        yield f"{cause.held.what} is {cause.held.found} since step {cause.held.since}"
    if cause.listed is not None:
        yield (
            f"the {cause.listed.kind} keys of row {cause.listed.row}: the list "
            f"{cause.listed.message}"
        )
    if cause.taken is not None and cause.taken.right is not None:
        taken = cause.taken
        slot = "no slot" if taken.slot is None else f"slot {taken.slot}"
        yield f"row {taken.row} uses {slot}; expected {taken.right}"
    if cause.difference is not None:
        found = cause.difference
        row = "" if found.row is None else f", {found.rows} {found.row}"
        yield f"the first difference is in {found.op}{row}, element {found.element}"


def _of_index(index: IndexOrigin) -> str:
    held = f"{index.buffer}[{index.element}] = {index.value}"
    right = NOT_KNOWN if index.right is None else str(index.right)
    if index.value != index.read and not index.stale and index.right == index.read_right:
        right = "a value that leads to no slot"
        if index.read_right is not None:
            right = f"a value that leads to slot {index.read_right}"
    return f"{held}, {_left(index.left_by, index.how, stale=index.stale)}; expected: {right}"


def _of_given(given: GivenValue) -> str:
    right = NOT_KNOWN if given.right is None else given.right
    held = f"{given.what} = {given.value}"
    if given.left_by is None or given.how is None:
        return f"{held}; expected: {right}"
    return f"{held}, {_left(given.left_by, given.how, stale=given.stale)}; expected: {right}"


def _left(writer: Writer, how: How, *, stale: bool) -> str:
    """Describe when an element got its value."""
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
