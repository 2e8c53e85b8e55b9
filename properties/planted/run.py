"""Plant the faults of the table, one at a time, and see that the test suite catches each.

A fault is caught if a test fails; not if the code no longer imports, a fixture breaks or no
test is collected. The tests named must first pass without the fault. Tests that do not end
within the time limit have caught it too, which is shown apart. Exits with 0 only if every
fault applies and is caught.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from properties.planted.fault import Fault
from properties.planted.outcomes import AFTER, README, read, readme, write
from properties.planted.proof import GOOD, Outcome, Proof, Verdict
from properties.planted.table import FAULTS


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


AnyFault = TypeVar("AnyFault", bound=Fault)


def chosen(only: str | None, faults: tuple[AnyFault, ...]) -> tuple[AnyFault, ...]:
    """Return the faults named, by comma, or all. Raises SystemExit for an unknown name."""
    if only is None:
        return faults
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {fault.name: fault for fault in faults}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SystemExit(f"unknown fault: {', '.join(unknown) or 'none is named'}")
    return tuple(known[name] for name in names)


def prove(faults: Sequence[Fault], tree: Path, jobs: int) -> Iterator[Outcome]:
    """Yield what became of each fault, as it ends, `jobs` at a time.

    All tests that are named are run first, with nothing planted.
    """
    with (
        tempfile.TemporaryDirectory(prefix="planted-") as scratch,
        ThreadPoolExecutor(jobs) as pool,
    ):
        proof = Proof(tree, Path(scratch), jobs)
        try:
            named = list(dict.fromkeys(fault.tests for fault in faults))
            say(f"{len(named)} sets of tests without a fault")
            green = dict(zip(named, pool.map(proof.is_green, named), strict=True))
            for fault in faults:
                if not green[fault.tests]:
                    yield Outcome(fault.name, Verdict.UNDECIDED, "", 0.0)
            able = [fault for fault in faults if green[fault.tests]]
            for ended in as_completed([pool.submit(proof.plant, fault) for fault in able]):
                yield ended.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            proof.stop()
            raise


def options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Plant faults; show that the suite catches each.")
    parser.add_argument("--tree", type=Path, default=Path(), help="The tree to try (this folder)")
    parser.add_argument("--only", metavar="NAME,...", help="Plant these faults alone")
    parser.add_argument("--jobs", type=int, default=1, help="Faults that are planted at a time")
    parser.add_argument(
        "--table",
        type=Path,
        help=f"Where outcomes go, those of other faults kept; {AFTER.name} is what README.md shows",
    )
    parser.add_argument(
        "--readme", action="store_true", help="Plant nothing; make README.md again from outcomes"
    )
    return parser.parse_args()


def main() -> int:
    """Plant the faults asked for and return the exit code."""
    asked = options()
    if asked.readme:
        README.write_text(readme(FAULTS, read(AFTER)), encoding="utf-8")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Leave nothing.
    faults = chosen(asked.only, FAULTS)
    kept = read(asked.table) if asked.table is not None else {}
    bad: list[str] = []
    for place, outcome in enumerate(prove(faults, asked.tree.resolve(), asked.jobs), 1):
        found = f"{outcome.verdict} {outcome.caught_by}".strip()
        say(f"[{place}/{len(faults)}] {outcome.fault}: {found} ({outcome.seconds:.1f} s)")
        if outcome.verdict not in GOOD:
            bad.append(outcome.fault)
        if asked.table is not None:
            kept[outcome.fault] = outcome
            write(kept, FAULTS, asked.table)
    rest = f"; not: {', '.join(bad)}" if bad else ""
    say(f"{len(faults) - len(bad)} of {len(faults)} caught{rest}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
