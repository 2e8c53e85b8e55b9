"""The parser of the command line, a function for each command."""

import argparse
from textwrap import fill
from typing import Any

from paritybit.harness.cli.folders import CORPUS, OUT
from paritybit.harness.cli.words.reading import Parser
from paritybit.harness.cli.words.values import (
    EVERY,
    NEWEST,
    count,
    count_or_none,
    counts,
    file,
    names,
    number,
)
from paritybit.harness.machine.workers import LOCAL

from paritybit import __version__

Command = tuple[str, str]
"""A module, and the function in it that runs a command: imported when that is run.

So that help, and what is wrong with a command line, need not wait for what takes long.
"""

run_bisect: Command = "paritybit.harness.cli.bisect", "run_bisect"
run_corpus: Command = "paritybit.harness.cli.corpus", "run_corpus"
run_engine: Command = "paritybit.harness.cli.engines.trial", "run_engine"
run_releases: Command = "paritybit.harness.cli.engines.trial", "run_releases"
run_bench: Command = "paritybit.harness.cli.bench", "run_bench"
run_list: Command = "paritybit.harness.cli.names", "run_list"
run_mutants: Command = "paritybit.harness.cli.measure", "run_mutants"
run_soak: Command = "paritybit.harness.cli.measure", "run_soak"
run_timeline: Command = "paritybit.harness.cli.measure", "run_timeline"
run_compare: Command = "paritybit.harness.cli.pages", "run_compare"
run_report: Command = "paritybit.harness.cli.pages", "run_report"
run_summary: Command = "paritybit.harness.cli.pages", "run_summary"
run_regress: Command = "paritybit.harness.cli.regress", "run_regress"
run_replay: Command = "paritybit.harness.cli.replay", "run_replay"

DESCRIPTION = """\
Run every step of an inference engine twice, once eagerly and once by CUDA-graph replay,
and compare the bits.

Exit codes: 0 as hoped, 1 a finding, 2 a malformed command line or file or a name no build
has, 125 no verdict, 130 interrupted, 143 terminated, 129 its terminal is gone.

docs/glossary.md explains the words: runner, bucket, schedule, trial, hunt, leg, case.
"""

EXAMPLES = {
    "regress": "regress --bug swa_pad@decode\nregress --engine sglang==0.5.12 --runner decode",
    "replay": "replay properties/corpus/swa_pad@decode.json\nreplay properties/corpus",
    "bisect": "bisect swa_pad,swa_int64\nbisect swa_pad,req_pool_pad --runner decode --seed 1",
    "timeline": "timeline --device cpu --record timeline.json",
    "corpus": "corpus --bug swa_pad --out cases",
    "list": "list\nlist --json",
    "report": "report paritybit-out/latest/run.json --page page.html",
    "compare": "compare before/run.json after/run.json",
    "summary": "summary paritybit-out/latest/run.json",
    "soak": "soak --steps 2000 --seeds 0 --record soak.json",
    "bench": "bench --device cpu --record bench.json",
    "mutants": "mutants --runner decode --seeds 1",
    "engine": "engine 0.5.12",
    "bisect-releases": "bisect-releases --releases 0.5.11,0.5.12 --bug swa_pad@decode",
}
"""Command lines by the command's name, one a line."""

HELP_WIDTH = 80

RECORD = OUT / "latest" / "run.json"
"""The record that a command about one reads, if nothing else is said."""


class Commands:
    """The commands of a parser, added one by one."""

    def __init__(self, top: Parser) -> None:
        self.subparsers = top.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(self, name: str, run: Command, summary: str) -> Parser:
        """Add a command that calls `run`, and return its parser."""
        lines = "".join(f"\n  paritybit {line}" for line in EXAMPLES[name].splitlines())
        command: Any = self.subparsers.add_parser(
            name,
            help=summary,
            description=fill(summary, HELP_WIDTH),
            epilog=f"for example:{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # --seed is none of soak's, and must not become --seeds.
        )
        command.set_defaults(run=run, parser=command)
        return command  # type: ignore[no-any-return]


def parser() -> Parser:
    """Return the parser of the command line. It leaves the command to run in `run`."""
    formatter = argparse.RawTextHelpFormatter
    top = Parser(
        prog="paritybit", description=DESCRIPTION, formatter_class=formatter, allow_abbrev=False
    )
    top.add_argument("--version", action="version", version=f"paritybit {__version__}")
    commands = Commands(top)
    for add in (
        add_regress,
        add_replay,
        add_bisect,
        add_timeline,
        add_corpus,
        add_list,
        add_pages,
        add_soak,
        add_bench,
        add_mutants,
        add_engine,
        add_releases,
    ):
        add(commands)
    return top


def add_device(command: Parser) -> None:
    """Add the option that says which device the worlds live on."""
    command.add_argument("--device", help="auto, cpu or cuda")


def add_shape(command: Parser) -> None:
    """Add the option that says how large models and pools are."""
    command.add_argument(
        "--shape", default="tiny", help="How large models and pools are: tiny, mid or real (tiny)"
    )


def add_workers(command: Parser) -> None:
    """Add the options that say how many processes share the work, and how these share GPUs."""
    default = "by cores, GPUs and whether an MPS daemon answers: docs/gpu.md"
    command.add_argument("--workers", type=count, help=f"Processes ({default})")
    add_mps(command)


def add_mps(command: Parser) -> None:
    """Add the option that lets processes share GPUs by an MPS daemon of their own."""
    command.add_argument(
        "--mps", action="store_true", help="Share GPUs by an NVIDIA MPS daemon of this run's own"
    )


def add_cluster(command: Parser) -> None:
    """Add the options that spread work over machines, and that keep what has ended."""
    cluster = "Spread over a Ray cluster: one of this machine alone, or the one at an address"
    command.add_argument("--ray", nargs="?", const=LOCAL, metavar="ADDRESS", help=cluster)
    journal = (
        "File that keeps the result of every task that has ended: the same command, given again,"
        " runs the other tasks alone"
    )
    command.add_argument("--journal", type=file, help=journal)


def add_regress(commands: Commands) -> None:
    """Add the main job."""
    summary = "Try the unchanged engine, then each known bug, switched on alone; write a page"
    regress = commands.add("regress", run_regress, summary)
    regress.add_argument(
        "--bug",
        type=names,
        default=(),
        help="Bugs to switch on, by comma: BUG or BUG@RUNNER (all)",
    )
    regress.add_argument("--runner", type=names, default=(), help="Runners to try, by comma (all)")
    regress.add_argument("--preset", type=names, default=(), help="Models, by comma (all)")
    add_shape(regress)
    regress.add_argument("--seed", type=number, default=0, help="Seed of the schedules (0)")
    examples = "Schedules for each bug (50), or for each runner of an engine beside its first (4)"
    regress.add_argument("--examples", type=count, help=examples)
    add_workers(regress)
    add_cluster(regress)
    database = (
        "Folder of an example database that runs share: the cases that they find are kept there,"
        " and runs of the clean build play these first"
    )
    regress.add_argument("--database", type=file, help=database)
    regress.add_argument("--out", type=file, default=OUT, help=f"Folder of run folders ({OUT})")
    regress.add_argument(
        "--engine",
        metavar="ENGINE",
        help="Try a released engine, sglang==VERSION or vllm==VERSION, or a folder's source tree",
    )
    add_device(regress)


def add_replay(commands: Commands) -> None:
    """Add the replay of case files."""
    replay = commands.add(
        "replay",
        run_replay,
        "Replay a case file: exit code 0 if it is clean, 1 if anything is violated. Of several, or"
        " of a folder of them, 0 if each does what it says of itself, 1 if one does not",
    )
    replay.add_argument("case", type=file, nargs="+", help="Case file, or a folder of them")
    replay.add_argument(
        "--engine",
        help="Engine on which an engine's case is replayed, named as for regress",
    )
    add_device(replay)


def add_bisect(commands: Commands) -> None:
    """Add the bisection over bugs, or over what an engine's static inputs have left."""
    summary = (
        "Find the smallest set of bugs that explains a failing schedule, or, of an engine's"
        " case, the smallest set of static inputs whose leftovers do"
    )
    bisect = commands.add("bisect", run_bisect, summary)
    bisect.add_argument(
        "bugs",
        type=names,
        nargs="?",
        default=(),
        help="Bugs to choose from, by comma, of one location scheme; none of an engine's case",
    )
    bisect.add_argument(
        "--case", type=file, help="Case file whose schedule is played (else one is looked for)"
    )
    bisect.add_argument(
        "--engine", help="Engine on which an engine's case is played, named as for regress"
    )
    bisect.add_argument("--property", help="Property to explain (the case's, or the first seen)")
    bisect.add_argument("--runner", help="Runner to play (one that the bugs affect)")
    bisect.add_argument("--seed", type=number, default=0, help="Seed of the schedules (0)")
    bisect.add_argument(
        "--examples",
        type=count,
        default=50,
        help="Schedules drawn at most, to find one that fails (50)",
    )
    bisect.add_argument("--out", type=file, help="File for a case of the smallest set")
    add_device(bisect)


def add_timeline(commands: Commands) -> None:
    """Add the upstream history."""
    summary = "Play the upstream history: which properties were red when"
    timeline = commands.add("timeline", run_timeline, summary)
    add_workers(timeline)
    add_cluster(timeline)
    timeline.add_argument("--record", type=file, help="Where the figures go, as JSON")
    add_device(timeline)


def add_corpus(commands: Commands) -> None:
    """Add the making of the regression corpus."""
    summary = "Make the regression corpus again, on a CPU, seed 0"
    corpus = commands.add("corpus", run_corpus, summary)
    corpus.add_argument("--bug", type=names, default=(), help="BUG or BUG@RUNNER, by comma (all)")
    corpus.add_argument("--workers", type=count, help="Processes (a core each)")
    corpus.add_argument("--out", type=file, default=CORPUS, help=f"Folder of cases ({CORPUS})")


def add_list(commands: Commands) -> None:
    """Add the list of names."""
    listing = commands.add("list", run_list, "List bugs, runners, models (presets) and properties")
    listing.add_argument("--json", action="store_true", help="As JSON")


def add_pages(commands: Commands) -> None:
    """Add what makes pages and summaries of run records."""
    report = commands.add("report", run_report, "Make the HTML page of a run record again")
    add_record(report)
    page = "File for the page (index.html beside the record)"
    report.add_argument("--page", type=file, help=page)
    summary = (
        "Compare two records, of runs or of engines' trials: exit code 1 if a finding is new or"
        " worse, 125 if the later one leaves open what the earlier one could tell"
    )
    compare = commands.add("compare", run_compare, summary)
    compare.add_argument("before", type=file, help="Record of the earlier run")
    compare.add_argument("after", type=file, help="Record of the later run")
    compared = OUT / "compare.html"
    page = f"File for the page ({compared})"
    compare.add_argument("--page", type=file, default=compared, help=page)
    summary = "Print a run as Markdown, for a CI job's summary"
    markdown = commands.add("summary", run_summary, summary)
    add_record(markdown)


def add_record(command: Parser) -> None:
    """Add the record that a command reads."""
    about = f"Record of a run of regress ({RECORD})"
    command.add_argument("record", type=file, nargs="?", default=RECORD, help=about)


def add_soak(commands: Commands) -> None:
    """Add the measurement of endurance."""
    summary = "Count false alarms over many clean steps, and bugs by seed; or soak an engine"
    soak = commands.add("soak", run_soak, summary)
    steps = (
        "Clean steps in all (20000), or steps of each runner of an engine (1000). A few more are"
        " played: a batch of 50 clean schedules, or a schedule of an engine, is played to its end"
    )
    soak.add_argument("--steps", type=count_or_none, help=steps)
    soak.add_argument("--seeds", type=count_or_none, help="Seeds for each bug (20)")
    add_workers(soak)
    add_cluster(soak)
    soak.add_argument(
        "--first-seed", type=count_or_none, default=0, help="Seed of the first clean schedules (0)"
    )
    soak.add_argument("--record", type=file, required=True, help="Where the figures go, as JSON")
    table = "Where the table of schedules that each bug needed goes, as Markdown"
    soak.add_argument("--table", type=file, help=table)
    soak.add_argument(
        "--engine",
        metavar="ENGINE",
        help="Soak a released engine instead, named as for regress: exit code 0 if every runner"
        " played its steps and nothing differs",
    )
    soak.add_argument(
        "--runner", type=names, default=(), help="Runners of the engine, by comma (all)"
    )
    soak.add_argument("--preset", type=names, default=(), help="Models, by comma (each its own)")
    add_shape(soak)
    add_device(soak)


def add_bench(commands: Commands) -> None:
    """Add the measurement of speed."""
    bench = commands.add("bench", run_bench, "Measure differential steps per second")
    numbers = "How many processes play at a time: numbers, by comma (those worth measuring here)"
    bench.add_argument("--processes", type=counts, default=(), help=numbers)
    bench.add_argument("--record", type=file, help="Where the figures go, as JSON")
    add_device(bench)


def add_mutants(commands: Commands) -> None:
    """Add the hunt of contract mutants."""
    summary = "Get every static buffer wrong in each way; say which mutants no property sees"
    mutants = commands.add("mutants", run_mutants, summary)
    mutants.add_argument("--runner", type=names, default=(), help="Runners, by comma (all)")
    mutants.add_argument("--seeds", type=count, default=5, help="Seeds for each mutant (5)")
    mutants.add_argument("--first-seed", type=count_or_none, default=0, help="First seed (0)")
    mutants.add_argument("--examples", type=count, default=50, help="Schedules for each seed (50)")
    add_workers(mutants)
    add_cluster(mutants)
    mutants.add_argument("--record", type=file, help="Where the figures go, as JSON")
    add_device(mutants)


def add_engine(commands: Commands) -> None:
    """Add the fetching of a released engine."""
    engine = commands.add(
        "engine", run_engine, "Fetch a release of an engine into a folder of its own"
    )
    engine.add_argument("version", help="Release: of sglang as 0.5.12, of vLLM as vllm==0.33.0")


def add_releases(commands: Commands) -> None:
    """Add the walk over releases."""
    walk = commands.add("bisect-releases", run_releases, "Say which releases have which fault")
    walk.add_argument("--bug", type=names, default=(), help="Faults asked about, by comma (all)")
    walk.add_argument(
        "--engine", choices=("sglang", "vllm"), default="sglang", help="Which engine (sglang)"
    )
    releases = f"Releases, by comma; {NEWEST}; or {EVERY} (a few that differ, and {NEWEST})"
    walk.add_argument("--releases", type=names, default=(), help=releases)
    table = "Where the matrix of runners by release goes, as Markdown"
    walk.add_argument("--table", type=file, help=table)
    walk.add_argument("--runner", type=names, default=(), help="Runners, by comma (all)")
    walk.add_argument("--preset", type=names, default=(), help="Models, by comma (each its own)")
    walk.add_argument("--seed", type=number, default=0, help="Seed of the schedules (0)")
    walk.add_argument(
        "--examples", type=count, help="Schedules for each runner beside its first (4)"
    )
    add_workers(walk)
    walk.add_argument("--out", type=file, default=OUT, help=f"Folder of run folders ({OUT})")
    add_device(walk)
