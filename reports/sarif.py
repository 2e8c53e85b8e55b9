"""The findings of a record as SARIF 2.1.0, which code hosts show at the lines of the engine.

Source: OASIS, Static Analysis Results Interchange Format Version 2.1.0.
"""

from typing import Any

from paritybit.launch.schema import IN_BASELINE, RecordedFinding, WatchRecord
from paritybit.launch.words import all_causes, lines_of, source_of

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
"""The base of the paths: the root of the engine's repository."""


def sarif_of(record: WatchRecord, prefix: str = "") -> dict[str, Any]:
    """Return the first finding of each cause and check as JSON data.

    `prefix` is the path from the root of the engine's repository to its package.
    """
    firsts = {
        (group.name, finding.check): finding
        for group in all_causes(record.findings)
        for finding in reversed(group.findings)
    }
    loaded = [process.engine for config in record.configs for process in config.processes]
    package = next(filter(None, loaded), (record.engine or "engine").partition("==")[0])
    results = [result_of(finding, prefix, package) for finding in firsts.values()]
    if record.baseline is not None:
        for result, finding in zip(results, firsts.values(), strict=True):
            result["baselineState"] = "unchanged" if finding.known == IN_BASELINE else "new"
    driver = {
        "name": "paritybit",
        "version": record.environment.paritybit,
        "rules": [{"id": rule} for rule in sorted({one["ruleId"] for one in results})],
    }
    notes = [{"level": "warning", "message": {"text": reason}} for reason in record.undecided]
    invocation = {
        "commandLine": record.command,
        "executionSuccessful": record.verdict != "undecided",
        "toolExecutionNotifications": notes,
    }
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def result_of(finding: RecordedFinding, prefix: str, package: str) -> dict[str, Any]:
    """Return a finding as a SARIF result. A known finding is suppressed.

    Code hosts need a line. A finding without one gets the first line of the package.
    """
    lines = [f"{name}: {text}" for name, text in lines_of(finding)]
    found: dict[str, Any] = {
        "ruleId": finding.check.replace(" ", "-"),
        "level": "error",
        "message": {"text": "\n".join([finding.text, *lines])},
        "partialFingerprints": {"paritybitKey/v1": finding.key},
        "occurrenceCount": finding.number,
        "locations": [location(finding, prefix, package)],
    }
    if finding.known is not None:
        found["suppressions"] = [{"kind": "external", "justification": finding.known}]
    return found


def location(finding: RecordedFinding, prefix: str, package: str) -> dict[str, Any]:
    """Return the line of the engine that a finding names, with the lines around it."""
    path, line = source_of(finding) or (f"{package}/__init__.py", 1)
    physical: dict[str, Any] = {
        "artifactLocation": {"uri": f"{prefix}{path}", "uriBaseId": ROOT},
        "region": {"startLine": line},
    }
    if finding.excerpt:
        first, last = finding.excerpt[0].number, finding.excerpt[-1].number
        text = "".join(f"{one.text}\n" for one in finding.excerpt)
        region = {"startLine": first, "endLine": last, "snippet": {"text": text}}
        physical["contextRegion"] = region
    return {"physicalLocation": physical}
