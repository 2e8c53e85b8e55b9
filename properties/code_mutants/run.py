"""Make mutants of `subjects/`, play clean trials on each, and print the score.

A mutant is seen if a property is violated, or if the build or a check of ours does not stand
it, which is counted apart. One that survives must stand in `survivors.json` with a reason.
Exits with 0 only if every survivor does.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.table import Table

from properties.code_mutants.mutation import ROOT, CodeMutant, mutants_of, mutated_files

SURVIVORS = Path(__file__).parent / "survivors.json"
LIMIT_SECONDS = 900
"""After this long the process of a mutant is ended: it hangs, which is seen too."""


def sample(count: int, seed: int, only: str | None) -> list[CodeMutant]:
    """Return `count` mutants drawn by `seed`, in the order of files and lines; 0 means all.

    `only` is the beginning of a file's name.
    """
    files = [file for file in mutated_files() if only is None or file.startswith(only)]
    everything = [mutant for file in files for mutant in mutants_of(file)]
    if 0 < count < len(everything):
        everything = random.Random(seed).sample(everything, count)
    return sorted(everything, key=lambda mutant: (mutant.file, mutant.number))


def ended(mutant: CodeMutant) -> dict[str, str]:
    """Play a mutant in a process of its own and return how it ended."""
    command = [sys.executable, "-m", "properties.code_mutants.trial", mutant.file]
    try:
        done = subprocess.run(
            [*command, str(mutant.number)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"end": "hung", "by": ""}
    if done.returncode != 0 or not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"end": "raised", "by": last}
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def play_all(
    mutants: Sequence[CodeMutant], jobs: int
) -> Iterator[tuple[CodeMutant, dict[str, str]]]:
    """Yield how each mutant ended, as it ends, `jobs` at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(ended, mutant): mutant for mutant in mutants}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def known_survivors() -> dict[str, str]:
    """Return the reasons of the committed table, by the mutant's key."""
    reasons: dict[str, str] = json.loads(SURVIVORS.read_text(encoding="utf-8"))
    return reasons


def main() -> int:
    """Play the mutants asked for, print the score and return the exit code."""
    parser = argparse.ArgumentParser(description="Mutate subjects/; show that the harness sees it.")
    parser.add_argument("--count", type=int, default=60, help="Mutants to draw; 0 plays all")
    parser.add_argument("--seed", type=int, default=0, help="What the draw follows from")
    parser.add_argument("--only", help="Files whose name begins so, such as subjects/runners")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Processes at a time")
    parser.add_argument("--record", type=Path, help="Where to write how each mutant ended")
    asked = parser.parse_args()
    mutants = sample(asked.count, asked.seed, asked.only)
    console, known = Console(), known_survivors()
    ends: Counter[tuple[str, str]] = Counter()
    rows, unexplained = [], []
    for place, (mutant, result) in enumerate(play_all(mutants, asked.jobs), 1):
        end = result["end"]
        if end == "survived" and mutant.key in known:
            end = "cannot matter"
        elif end in {"survived", "not loaded"}:
            unexplained.append(mutant)
        ends[mutant.kind, end] += 1
        rows.append({"key": mutant.key, "line": mutant.line, **result})
        console.print(f"[{place}/{len(mutants)}] {end}: {mutant.key} {result['by']}", markup=False)
    if asked.record is not None:
        rows.sort(key=lambda row: str(row["key"]))
        asked.record.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    console.print(score(ends))
    for mutant in unexplained:
        console.print(f"survived: {mutant.file}:{mutant.line} {mutant.key}", markup=False)
    return 1 if unexplained else 0


def score(ends: Counter[tuple[str, str]]) -> Table:
    """Return how the mutants of each kind ended."""
    columns = sorted({end for _, end in ends})
    table = Table("kind", *columns, "all", title="code mutants of subjects/")
    kinds = sorted({kind for kind, _ in ends})
    for kind in kinds:
        counts = [ends[kind, end] for end in columns]
        table.add_row(kind, *map(str, counts), str(sum(counts)))
    sums = [sum(ends[kind, end] for kind in kinds) for end in columns]
    table.add_row("all", *map(str, sums), str(sum(sums)))
    return table


if __name__ == "__main__":
    sys.exit(main())
