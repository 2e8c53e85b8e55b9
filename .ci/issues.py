#!/usr/bin/env python3
"""Open or update one issue per engine and cause of findings, from records of `paritybit watch`.

Usage: .ci/issues.py [--post] RECORD... Without --post, it only prints what it would do. With it, it
needs GITHUB_REPOSITORY and GITHUB_TOKEN. It does not change closed issues.
"""

import argparse
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paritybit.harness.records.codec import load
from paritybit.reports.issue import Issue, issues_of
from paritybit.reports.markdown import table

from paritybit.launch.case import WatchCase
from paritybit.launch.schema import WatchRecord

LABEL = "paritybit-finding"
MOST_PAGES = 50


def main(words: list[str]) -> int:
    """Open or update an issue for each cause in the records. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--post", action="store_true", help="open and update issues")
    parser.add_argument("records", nargs="*", type=Path, metavar="RECORD")
    options = parser.parse_args(words)
    found: dict[str, list[Issue]] = {}
    for path in options.records:
        for issue in read(path):
            found.setdefault(issue.key, []).append(issue)
    issues = existing() if options.post else []
    for key, same in found.items():
        mine = next((one for one in issues if f"<!-- {key} -->" in (one["body"] or "")), None)
        settle(same[-1].title, body_of(same), mine, post=options.post)
    print(f"{len(found)} causes in {len(options.records)} records")
    return 0


def read(path: Path) -> list[Issue]:
    """Return the issues about a record, whose cases are in the folder next to it."""
    files = sorted((path.parent / "cases").glob("*.json"))
    cases = {file.name: load(file, WatchCase) for file in files}
    return list(issues_of(load(path, WatchRecord), cases))


def body_of(same: list[Issue]) -> str:
    """Return the text of an issue: a row for each run with the cause, and details of the last."""
    head = f"<!-- {same[0].key} -->\n`paritybit watch` found this. It is updated by later runs.\n"
    runs = table(("engine", "findings", "day"), (one.row for one in same))
    return "\n".join([head, *runs, "", same[-1].body])


def settle(title: str, body: str, mine: dict | None, *, post: bool) -> None:
    """Open an issue, or update an existing one. Without `post`, print what would be done."""
    if not post:
        print(f"would open or update: {title}\n{body}")
    elif mine is None:
        made = ask("POST", "issues", {"title": title, "body": body, "labels": [LABEL]})
        print(f"opened #{made['number']}: {title}")
    elif mine["state"] == "closed":
        print(f"closed, and left alone: #{mine['number']}: {title}")
    elif mine["body"].replace("\r\n", "\n").strip() == body.strip():
        print(f"unchanged: #{mine['number']}: {title}")
    else:
        ask("PATCH", f"issues/{mine['number']}", {"body": body})
        print(f"updated #{mine['number']}: {title}")


def existing() -> list[dict]:
    """Return the issues that this script opened before."""
    found: list[dict] = []
    for page in range(1, MOST_PAGES + 1):
        part = ask("GET", f"issues?state=all&labels={LABEL}&per_page=100&page={page}")
        found += [one for one in part if "pull_request" not in one]
        if len(part) < 100:
            break
    return found


def ask(method: str, path: str, data: dict | None = None) -> Any:
    """Call the API of the repository, and return its answer."""
    address = os.environ.get("GITHUB_API_URL", "https://api.github.com")
    request = urllib.request.Request(
        f"{address}/repos/{os.environ['GITHUB_REPOSITORY']}/{path}",
        method=method,
        data=None if data is None else json.dumps(data).encode(),
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
