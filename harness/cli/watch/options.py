"""The options of the commands of the sanitizer."""

from collections.abc import Callable

from paritybit.harness.cli.folders import OUT
from paritybit.harness.cli.words.reading import Parser
from paritybit.harness.cli.words.values import (
    NEWEST,
    count,
    count_or_none,
    file,
    names,
    number,
    numbers,
)

from paritybit.drive import ENGINES
from paritybit.places import KNOWN_FINDINGS

SECONDS = 300
"""The default total of seconds of a run with --engine, with the starts of the engine."""

FAIL, WARN = "fail", "warn"
"""The effects of a run without a verdict."""

ONLY_ENGINE = ("model", "device", "seed", "seconds", "settings", "rows", "keep_going")
"""Options that need --engine."""


def add_out(command: Parser) -> None:
    """Add the option for the folder of runs."""
    about = f"Folder in which each run creates its own folder (default: {OUT})"
    command.add_argument("--out", type=file, default=OUT, help=about)


def add_options(watch: Parser) -> None:
    """Add the options; the command to run follows `--`."""
    watch.runs_command = True
    watch.usage = "paritybit watch [options] -- COMMAND ...\n       paritybit watch [options]"
    watch.usage += " --engine ENGINE"
    add_out(watch)
    watch.add_argument(
        "--checks",
        type=names,
        default=(),
        help="Comma-separated checks to run, for example stray-write (default: all)",
    )
    watch.add_argument(
        "--every",
        type=count,
        default=1,
        help="Check about one in so many forward passes, to reduce the cost (default: 1)",
    )
    add_judgement(watch)
    add_served(watch)


def add_judgement(watch: Parser) -> None:
    """Add the options that decide when a run fails."""
    watch.add_argument(
        "--known",
        metavar="FILE",
        type=file,
        help="File of known findings, which do not fail the run "
        f"(default: {KNOWN_FINDINGS} in ENGINE)",
    )
    watch.add_argument(
        "--baseline",
        metavar="RECORD",
        type=file,
        help="Record of an earlier run (watch.json), whose findings do not fail this run",
    )
    watch.add_argument(
        "--undecided",
        choices=(FAIL, WARN),
        default=FAIL,
        help=f"Whether a run without a verdict fails with exit code 125 (default: {FAIL})",
    )


def add_served(watch: Parser) -> None:
    """Add the options of an engine that is served generated requests."""
    watch.add_argument(
        "--engine",
        metavar="ENGINE",
        help=(
            "Download and drive a release of sglang, vLLM or transformers, for example "
            "sglang==0.5.12, or drive the source tree in this folder, in place of COMMAND"
        ),
    )
    watch.add_argument("--model", help="Serve only this shape of a model, such as gemma4")
    watch.add_argument("--device", help="Device: auto, cpu or cuda (default: auto)")
    watch.add_argument(
        "--seed", type=number, help="Random seed for model and requests (default: 0)"
    )
    watch.add_argument(
        "--seconds",
        type=count,
        help=f"Seconds of the run, with the starts of the engine (default: {SECONDS})",
    )
    watch.add_argument(
        "--settings",
        type=names,
        default=(),
        help="Comma-separated rows of settings to serve, for example 'page size 16 + overlap' "
        "(default: the rows of the seed's covering array, as many as there is time for)",
    )
    watch.add_argument(
        "--rows",
        metavar="FIRST-LAST",
        type=numbers,
        help="Rows of the covering array to serve, such as 9-20 or 9- (default: from 1 on)",
    )
    watch.add_argument(
        "--keep-going",
        action="store_true",
        help="Serve the remaining rows after a finding, too",
    )


def add_shrink_options(shrink: Parser) -> None:
    """Add the options of `shrink`."""
    shrink.add_argument("case", type=file, help="Case file that watch wrote")
    shrink.add_argument(
        "--engine", help="Engine to serve; accepts the same values as watch --engine"
    )
    shrink.add_argument("--device", help="Device: auto or cpu (default: auto)")
    shrink.add_argument(
        "--seconds", type=count, default=120, help="Seconds for the search (default: 120)"
    )


def add_releases_options(releases: Parser) -> None:
    """Add the options of `releases`."""
    releases.add_argument(
        "--engine",
        choices=ENGINES,
        default="sglang",
        help="Engine whose releases are watched (default: sglang)",
    )
    releases.add_argument(
        "--releases",
        type=names,
        default=(),
        help=f"Comma-separated releases, or {NEWEST} (default: all whose hashes are pinned)",
    )
    releases.add_argument(
        "--seconds",
        type=count,
        default=SECONDS,
        help=f"Seconds for each release (default: {SECONDS})",
    )
    releases.add_argument(
        "--shrink",
        type=count_or_none,
        default=30,
        help="Seconds to shrink the case of each cause, 0 for not at all (default: 30)",
    )
    releases.add_argument(
        "--seed", type=number, default=0, help="Random seed for model and requests (default: 0)"
    )
    releases.add_argument(
        "--workers", type=count, default=2, help="Releases to watch at a time (default: 2)"
    )
    releases.add_argument(
        "--out",
        type=file,
        default=OUT / "releases",
        help=f"Folder for all results; releases that it holds are skipped (default: "
        f"{OUT}/releases)",
    )


def add_export_options(export: Parser) -> None:
    """Add the options of `export-test`."""
    export.add_argument("case", type=file, help="Case file that watch or shrink wrote")
    export.add_argument(
        "--engine",
        help="Also run the test on this engine, where it must fail. Accepts the same values as "
        "watch --engine",
    )
    export.add_argument(
        "--with-paritybit",
        action="store_true",
        help="Write a test that runs the sanitizer. It is shorter and exists for all cases",
    )
    export.add_argument(
        "--out", type=file, help="File of the test (default: test_CASE.py next to the case)"
    )


def add_explored(explore: Parser) -> None:
    """Add the options of `explore`."""
    about = "Release such as sglang==0.5.23, or a folder with a source tree"
    explore.add_argument("--engine", metavar="ENGINE", required=True, help=about)
    for flag, default, about in (
        ("--slots", 18, "Pages in the pool"),
        ("--requests", 2, "Requests at a time"),
        ("--depth", 12, "Actions in a schedule"),
        ("--page-size", 1, "Tokens in a page"),
        ("--window", 2, "Tokens of the sliding window"),
        ("--seconds", 120, "Seconds after which the search stops"),
    ):
        help_ = f"{about} (default: {default})"
        explore.add_argument(flag, type=count, default=default, metavar="N", help=help_)
    explore.add_argument(
        "--keys",
        choices=("1", "2"),
        default="1",
        help="Tokens in a key of sglang's prefix cache: 2 as with EAGLE (default: 1)",
    )
    add_out(explore)


RELEASES = "paritybit.harness.cli.watch.releases", "run_releases"

WATCHING: tuple[tuple[str, tuple[str, str], Callable[[Parser], object]], ...] = (
    ("watch", ("paritybit.harness.cli.watch.run", "run_watch"), add_options),
    ("shrink", ("paritybit.harness.cli.watch.shrink", "run_shrink"), add_shrink_options),
    ("releases", RELEASES, add_releases_options),
    ("explore", ("paritybit.harness.cli.explore", "run_explore"), add_explored),
    ("export-test", ("paritybit.harness.cli.watch.export", "run_export"), add_export_options),
)
"""The commands: name, module, function that runs it, and function that adds its options."""
