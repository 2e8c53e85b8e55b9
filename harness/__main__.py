"""The command line: the one place where harness and reports meet.

Exit codes: 0 as hoped, 1 a finding, 2 a malformed command line or file or a name no
build has, 125 cannot run here, 130 interrupted.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from harness.campaigns.corpus import CORPUS
from harness.checks.play import DeviceLostError
from harness.cli import CANNOT_RUN, FINDING, INTERRUPTED, MALFORMED, OUT
from harness.cli.bisect import run_bisect
from harness.cli.engines import RELEASES, run_engine, run_releases
from harness.cli.listing import run_list
from harness.cli.measure import run_bench, run_corpus, run_soak, run_timeline
from harness.cli.pages import run_compare, run_report, run_summary
from harness.cli.regress import run_regress
from harness.cli.replay import run_replay
from harness.lockstep.config import CannotRunError


class Parser(argparse.ArgumentParser):
    """A parser that tells of a wrong command line in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with 2."""
        raise ValueError(f"{message} (see {self.prog} --help)")


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def count(text: str, least: int = 1) -> int:
    """Return a whole number of at least `least`, or raise ArgumentTypeError."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def count_or_none(text: str) -> int:
    """Return a whole number of at least 0, or raise ArgumentTypeError."""
    return count(text, least=0)


def add_engines(command: Callable[..., Parser], regress: Parser, replay: Parser) -> Parser:
    """Add what tries released engines, to the main job too; return the walk over releases."""
    regress.add_argument(
        "--engine",
        metavar="ENGINE",
        help="Try a released engine, sglang==VERSION, or the source tree in a folder, instead",
    )
    replay.add_argument(
        "--engine",
        help="Engine to replay an engine's case on (the case's own): 1 if what it seeks is there",
    )
    engine = command("engine", run_engine, "Fetch a release of the engine, apart")
    engine.add_argument("version", help="Release, as 0.5.12")
    walk = command("bisect-releases", run_releases, "Say which releases have which fault")
    walk.add_argument("--bug", type=names, default=(), help="Faults asked about, by comma (all)")
    walk.add_argument("--releases", type=names, default=RELEASES, help="Releases, by comma")
    walk.add_argument("--seed", type=int, default=0, help="Seed of the schedules (0)")
    walk.add_argument("--out", type=Path, default=OUT, help=f"Folder of run folders ({OUT})")
    return walk


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = Parser(
        prog="paritybit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], message: str) -> Parser:
        sub: Parser = commands.add_parser(name, help=message, description=message)
        sub.set_defaults(run=run)
        return sub

    regress = command("regress", run_regress, "Clean baseline, then hunt every bug; write a page")
    regress.add_argument(
        "--bug",
        type=names,
        default=(),
        help="Bugs to hunt, by comma: BUG or BUG@RUNNER (all)",
    )
    regress.add_argument(
        "--runner", type=names, default=(), help="Runners on trial, by comma (all)"
    )
    regress.add_argument("--preset", type=names, default=(), help="Models, by comma (all)")
    regress.add_argument("--seed", type=int, default=0, help="Seed of the hunter (0)")
    regress.add_argument("--examples", type=count, default=50, help="Schedules per hunt (50)")
    regress.add_argument("--workers", type=count, help="Processes (a core each; 1 on cuda)")
    regress.add_argument("--out", type=Path, default=OUT, help=f"Folder of run folders ({OUT})")
    replay = command(
        "replay",
        run_replay,
        "Replay a case file: 0 clean, 1 it differs. Several, or a folder of them, are each held"
        " against what they say: 0 all do as they say, 1 one does not",
    )
    replay.add_argument("case", type=Path, nargs="+", help="Case file, or a folder of them")
    toggles = command(
        "bisect", run_bisect, "Find the smallest set of bugs that explains a failing schedule"
    )
    toggles.add_argument("bugs", type=names, help="Bugs to choose from, by comma, of one era")
    toggles.add_argument(
        "--case", type=Path, help="Case file whose schedule is played (else one is hunted)"
    )
    toggles.add_argument("--property", help="Property to explain (the case's, or the first seen)")
    toggles.add_argument("--runner", help="Runner to hunt on (one that the bugs can harm)")
    toggles.add_argument("--seed", type=int, default=0, help="Seed of the hunter (0)")
    toggles.add_argument("--examples", type=count, default=50, help="Schedules to hunt in (50)")
    toggles.add_argument("--out", type=Path, help="Where a case of the smallest set goes")
    past = command(
        "timeline", run_timeline, "Play the upstream history: which properties were red when"
    )
    past.add_argument("--workers", type=count, help="Processes (a core each; 1 on cuda)")
    past.add_argument("--record", type=Path, help="Where the figures go, as JSON")
    minimal = command("corpus", run_corpus, "Make the regression corpus again, on a CPU, seed 0")
    minimal.add_argument("--bug", type=names, default=(), help="BUG or BUG@RUNNER, by comma (all)")
    minimal.add_argument("--workers", type=count, help="Processes (a core each)")
    minimal.add_argument("--out", type=Path, default=CORPUS, help=f"Folder of cases ({CORPUS})")
    command("list", run_list, "List bugs, runners, presets and properties").add_argument(
        "--json", action="store_true", help="As JSON"
    )
    report = command("report", run_report, "Make the HTML page of a run record again")
    report.add_argument("record", type=Path, nargs="?", default=OUT / "latest" / "run.json")
    report.add_argument("--page", type=Path, help="Where to (index.html beside the record)")
    compare = command("compare", run_compare, "Two run records side by side: 1 if any is new")
    compare.add_argument("before", type=Path, help="Record of the earlier run")
    compare.add_argument("after", type=Path, help="Record of the later run")
    compare.add_argument("--page", type=Path, default=OUT / "compare.html", help="Where to")
    summary = command("summary", run_summary, "Print a run as Markdown, for a CI job's summary")
    summary.add_argument("record", type=Path, nargs="?", default=OUT / "latest" / "run.json")
    steady = command("soak", run_soak, "Count false alarms over many clean steps, and bugs by seed")
    steady.add_argument("--steps", type=count, default=20_000, help="Clean steps (20000)")
    steady.add_argument("--seeds", type=count_or_none, default=20, help="Hunter seeds per bug (20)")
    steady.add_argument("--workers", type=count, help="Processes (a core each; 1 on cuda)")
    steady.add_argument("--first-seed", type=count_or_none, default=0, help="First clean seed (0)")
    steady.add_argument("--record", type=Path, required=True, help="Where the figures go, as JSON")
    measure = command("bench", run_bench, "Measure differential steps per second")
    measure.add_argument("--record", type=Path, help="Where the figures go, as JSON")
    for each in (
        *(regress, replay, toggles, past, steady, measure),
        add_engines(command, regress, replay),
    ):
        each.add_argument("--device", help="auto, cpu or cuda")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are told in one sentence."""
    try:
        options = parser().parse_args(arguments)
        options.typed = sys.argv[1:] if arguments is None else arguments
        code: int = options.run(options)
    except CannotRunError as error:
        print(f"paritybit: {error}", file=sys.stderr)
        return CANNOT_RUN
    except (ValueError, OSError) as error:
        print(f"paritybit: {error}", file=sys.stderr)
        return MALFORMED
    except DeviceLostError as error:
        print(f"paritybit: the device was lost: {error}", file=sys.stderr)
        return FINDING
    except KeyboardInterrupt:
        print("paritybit: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
