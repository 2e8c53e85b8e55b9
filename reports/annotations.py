"""Annotations of GitHub Actions: workflow commands that show a message at a line of code."""

import os
from collections.abc import Iterator, Mapping

from paritybit.reports.model import Report

ON_GITHUB = "GITHUB_ACTIONS"
"""The environment variable that is `true` in GitHub Actions."""

ESCAPED: Mapping[str, str] = {"%": "%25", "\r": "%0D", "\n": "%0A"}
ESCAPED_IN_PROPERTY: Mapping[str, str] = {**ESCAPED, ":": "%3A", ",": "%2C"}
"""Escapes in the text of an annotation, and in its properties."""


def on_github() -> bool:
    """Whether this runs in a job of GitHub Actions."""
    return os.environ.get(ON_GITHUB) == "true"


def github_error(message: str, **properties: object) -> str:
    """Return the workflow command for an error with properties such as file, line and title."""
    named = (
        f"{name}={_escape(str(value), ESCAPED_IN_PROPERTY)}" for name, value in properties.items()
    )
    return f"::error {','.join(named)}::{_escape(message, ESCAPED)}"


def _escape(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(letter, letter) for letter in text)


def annotations(report: Report, prefix: str = "") -> Iterator[str]:
    """Yield the workflow commands for unknown causes. `prefix` is as in `sarif_of`."""
    for cause in report.causes:
        if not cause.known:
            place: dict[str, object] = {}
            if cause.line is not None:
                place = {"file": f"{prefix}{cause.line[0]}", "line": cause.line[1]}
            lines = [f"{fact.name}: {fact.text}" for fact in cause.facts]
            lines += [f"replay: {cause.replay.text()}"] if cause.replay is not None else []
            yield github_error("\n".join(lines), **place, title=cause.name)
