"""What a check in a test ends with: nothing, an AssertionError with reports, or undecided."""

from collections.abc import Iterable, Mapping
from typing import Any

from paritybit.launch.found import finding_of
from paritybit.launch.words import lines_of
from paritybit.watch.checks import CHECKS

UNKNOWN = "not known"
"""What a line says that says nothing."""


class UndecidedError(RuntimeError):
    """Something could not be judged. It says why."""


def reports(findings: Iterable[Mapping[str, Any]]) -> str:
    """Return findings of a journal as a sanitizer reports them: the first of each key."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        alike.setdefault(str(finding.get("key")), []).append(finding)
    return "\n\n".join(report(members[0], len(members)) for members in alike.values())


def report(found: Mapping[str, Any], times: int) -> str:
    """Return one finding, with a line for each thing that is known of it, and the law it breaks."""
    finding = finding_of(found, str(found.get("key")), times, "")
    lines = [f"  {name}: {text}" for name, text in lines_of(finding) if text != UNKNOWN]
    if times > 1:
        lines.append(f"  seen: {times} times")
    laws = [f"  law: {CHECKS[finding.check].law}"] if finding.check in CHECKS else []
    return "\n".join([f"ERROR: paritybit: {finding.check}: {finding.text}", *lines, *laws])
