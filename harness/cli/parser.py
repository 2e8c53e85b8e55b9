"""The parser of the command line, with a function per command."""

import argparse
from textwrap import fill
from typing import Any

from paritybit.harness.cli.folders import OUT
from paritybit.harness.cli.watch.options import WATCHING, add_out
from paritybit.harness.cli.words.help import COMMANDS, DESCRIPTION, DETAILS, EXAMPLES
from paritybit.harness.cli.words.reading import Formatter, Parser
from paritybit.harness.cli.words.values import (
    count,
    file,
    names,
    number,
)
from paritybit.harness.errors import PLURALS

from paritybit import __version__

Command = tuple[str, str]
"""A module and a function in it that runs a command. The module is imported when it is needed.

Help and errors in a command line therefore do not wait for slow imports.
"""

run_engine: Command = "paritybit.harness.cli.engine", "run_engine"
run_bench: Command = "paritybit.harness.cli.bench", "run_bench"
run_list: Command = "paritybit.harness.cli.names", "run_list"
run_compare: Command = "paritybit.harness.cli.pages", "run_compare"
run_report: Command = "paritybit.harness.cli.pages", "run_report"
run_summary: Command = "paritybit.harness.cli.pages", "run_summary"
run_explore: Command = "paritybit.harness.cli.explore", "run_explore"
run_regress: Command = "paritybit.harness.cli.regress", "run_regress"
run_replay: Command = "paritybit.harness.cli.replay", "run_replay"

HELP_WIDTH = 80

KINDS = (*PLURALS.values(), "bugs-on-runners")
"""The kinds of names for `list`."""

RECORD = OUT / "latest" / "run.json"
"""The default record."""


class Commands:
    """The commands of a parser, added one by one."""

    def __init__(self, top: Parser) -> None:
        self.subparsers = top.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(self, name: str, run: Command) -> Parser:
        """Add a command that calls `run`, and return its parser."""
        lines = "".join(f"\n  paritybit {line}" for line in EXAMPLES[name].splitlines())
        paragraphs = (fill(f"{COMMANDS[name]}.", HELP_WIDTH), DETAILS.get(name, ""))
        command: Any = self.subparsers.add_parser(
            name,
            help=COMMANDS[name],
            description="\n\n".join(paragraphs).rstrip(),
            epilog=f"examples:{lines}",
            formatter_class=Formatter,
            allow_abbrev=False,
        )
        command.set_defaults(run=run, parser=command)
        return command  # type: ignore[no-any-return]


def parser() -> Parser:
    """Return the parser of the command line. It stores the selected command in `run`."""
    formatter = argparse.RawTextHelpFormatter
    top = Parser(
        prog="paritybit", description=DESCRIPTION, formatter_class=formatter, allow_abbrev=False
    )
    top.add_argument("--version", action="version", version=f"paritybit {__version__}")
    commands = Commands(top)
    for add in (
        add_regress,
        add_watch,
        add_replay,
        add_list,
        add_pages,
        add_bench,
        add_engine,
    ):
        add(commands)
    return top


def add_names(command: Parser, flag: str, what: str) -> None:
    """Add an option that takes a comma-separated list of names."""
    about = f"Comma-separated {what} (default: all)"
    command.add_argument(flag, type=names, default=(), help=about)


def add_seed(command: Parser) -> None:
    """Add the option with the random seed of schedules."""
    about = "Random seed for the schedules (default: 0)"
    command.add_argument("--seed", type=number, default=0, help=about)


def add_device(command: Parser) -> None:
    """Add the option for the device."""
    command.add_argument("--device", help="Device: auto, cpu or cuda (default: auto)")


def add_workers(command: Parser) -> None:
    """Add the options for the number of workers, and for MPS."""
    chosen = "(default: chosen from the cores, GPUs and MPS daemon found; see docs/gpu.md)"
    command.add_argument("--workers", type=count, help=f"Number of worker processes {chosen}")
    add_mps(command)


def add_mps(command: Parser) -> None:
    """Add the option that starts a private MPS daemon."""
    command.add_argument(
        "--mps",
        action="store_true",
        help="Start an NVIDIA MPS daemon for this run so that processes can share a GPU",
    )


def add_regress(commands: Commands) -> None:
    """Add `regress`."""
    regress = commands.add("regress", run_regress)
    add_names(regress, "--bug", "bugs, each BUG or BUG@RUNNER")
    add_names(regress, "--runner", "runners")
    add_names(regress, "--preset", "models")
    add_seed(regress)
    examples = "Schedules for each bug on each runner (default: 50)"
    regress.add_argument("--examples", type=count, help=examples)
    add_workers(regress)
    strict = "Exit with 125 if the run did not reach all states that a full run must reach"
    regress.add_argument("--strict", action="store_true", help=strict)
    add_out(regress)
    add_device(regress)


def add_watch(commands: Commands) -> None:
    """Add the commands of the sanitizer."""
    for name, run, add_options in WATCHING:
        add_options(commands.add(name, run))


def add_replay(commands: Commands) -> None:
    """Add `replay`."""
    replay = commands.add("replay", run_replay)
    replay.add_argument("case", type=file, nargs="+", help="Case file or folder of case files")
    replay.add_argument(
        "--engine",
        help="Engine for an engine's case; accepts the same values as watch --engine",
    )
    add_device(replay)


def add_list(commands: Commands) -> None:
    """Add `list`."""
    listing = commands.add("list", run_list)
    about = "Kind of names to list in full (default: a summary of all kinds)"
    listing.add_argument("kind", nargs="?", choices=KINDS, help=about)
    listing.add_argument("--json", action="store_true", help="Print JSON")


def add_pages(commands: Commands) -> None:
    """Add `report`, `compare` and `summary`."""
    report = commands.add("report", run_report)
    add_record(report, "Record of a run, or the folder of a killed run of watch")
    page = "Output file (default: index.html next to the record)"
    report.add_argument("--page", type=file, help=page)
    compare = commands.add("compare", run_compare)
    compare.add_argument("before", type=file, help="Record of the earlier run")
    compare.add_argument("after", type=file, help="Record of the later run")
    compared = OUT / "compare.html"
    page = f"Output file for the HTML page (default: {compared})"
    compare.add_argument("--page", type=file, default=compared, help=page)
    markdown = commands.add("summary", run_summary)
    add_record(markdown, "Record of a run")


def add_record(command: Parser, about: str) -> None:
    """Add the argument with the record to read."""
    about = f"{about} (default: {RECORD})"
    command.add_argument("record", type=file, nargs="?", default=str(RECORD), help=about)


def add_bench(commands: Commands) -> None:
    """Add `bench`."""
    bench = commands.add("bench", run_bench)
    bench.add_argument("--record", type=file, help="Write the results to this JSON file")
    engine = "Also measure what watching this engine costs on a CPU, for example sglang==0.5.23"
    bench.add_argument("--engine", help=engine)
    add_device(bench)


def add_engine(commands: Commands) -> None:
    """Add `engine`."""
    engine = commands.add("engine", run_engine)
    engine.add_argument(
        "version",
        help="Release to download: 0.5.12 or sglang==0.5.12, vllm==0.33.0, transformers==5.24.0",
    )
