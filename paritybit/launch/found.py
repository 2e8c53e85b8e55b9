"""Converts a finding of a journal for the record.

A value whose type differs from the declared one is omitted, because a journal may be corrupted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from paritybit.launch.schema import Cause, Finding, SourceLine, Who
from paritybit.launch.tally import cause_of


def finding_of(
    found: Mapping[str, Any], key: str, number: int, leg: str, after: str | None = None
) -> Finding:
    """Convert a finding of a journal for the record. `after` is the cause before it."""
    slots = found.get("slots")
    return Finding(
        check=str(found.get("check")),
        text=str(found.get("text")),
        key=key,
        number=max(number, 1),
        leg=leg,
        group_of=cause_of(found),
        forward=whole_number(found.get("forward")),
        kind=words(found.get("forward_kind")),
        group=words(found.get("group")),
        replay=words(found.get("replay")),
        layer=words(found.get("layer")),
        slots=tuple(slot for slot in slots if type(slot) is int)
        if isinstance(slots, list | tuple)
        else (),
        count=whole_number(found.get("count")) or 1,
        writer=who(found.get("writer")),
        reader=who(found.get("reader")),
        freed=who(found.get("freed")),
        cause=cause(found.get("cause")),
        excerpt=tuple(source_lines(found.get("excerpt"))),
        origin=words(found.get("origin")),
        after=after,
    )


def source_lines(value: object) -> Iterator[SourceLine]:
    """Convert the lines of an engine's source."""
    for line in value if isinstance(value, list | tuple) else ():
        match line:
            case [int(number), str(text)]:
                yield SourceLine(number, text)


def words(value: object) -> str | None:
    """Return a value as text, or None for an empty value."""
    return None if value is None or value == "" else str(value)


def whole_number(value: object) -> int | None:
    """Return a value if it is an int, else None."""
    return value if type(value) is int else None


def who(value: object) -> Who | None:
    """Convert a request at a position and a forward."""
    if not isinstance(value, Mapping):
        return None
    position, forward = (whole_number(value.get(name)) for name in ("position", "forward"))
    request, source, via = (words(value.get(name)) for name in ("request", "source", "via"))
    return Who(request, position, forward, source, via)


def cause(value: object) -> Cause | None:
    """Convert a cause."""
    if not isinstance(value, Mapping):
        return None
    what, source = str(value.get("what")), words(value.get("source"))
    shown, via = value.get("shown") is True, words(value.get("via"))
    return Cause(what, words(value.get("input")), source, shown, via)
