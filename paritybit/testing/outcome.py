"""The outcome of a check in a test: an AssertionError with reports, or an UndecidedError."""

from collections.abc import Iterable, Mapping
from typing import Any

from paritybit.launch.schema import finding_of
from paritybit.launch.words import lines_of
from paritybit.watch.checks import CHECKS

UNKNOWN = "not known"
"""The text of a line without information."""


class UndecidedError(RuntimeError):
    """Something could not be judged. The message has the reason."""


def reports(findings: Iterable[Mapping[str, Any]]) -> str:
    """Return the reports of the first finding of each key in a journal."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        alike.setdefault(str(finding.get("key")), []).append(finding)
    return "\n\n".join(report(members[0], len(members)) for members in alike.values())


def report(found: Mapping[str, Any], times: int) -> str:
    """Return the report of one finding: a line per known fact, and the violated law."""
    finding = finding_of(found)
    lines = [f"  {name}: {text}" for name, text in lines_of(finding) if text != UNKNOWN]
    if times > 1:
        lines.append(f"  seen: {times} times")
    laws = [f"  law: {CHECKS[finding.check].law}"] if finding.check in CHECKS else []
    return "\n".join([f"ERROR: paritybit: {finding.check}: {finding.text}", *lines, *laws])
