"""The command line: nine commands in three groups.

Each function imports what its command needs, so help and errors in a command line wait for neither
torch nor an engine.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from paritybit.harness.cli.folders import OUT
from paritybit.harness.cli.values import MOST, count, names, path
from paritybit.harness.errors import MalformedError
from paritybit.harness.machine.stopping import Stop
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from paritybit import __version__

UsageError: Any = typer.BadParameter.__base__
"""The class of all errors in a command line. Its module depends on the release of typer."""

ENGINES, FINDINGS, LABORATORY = "Test an engine", "Handle a finding", "The laboratory"
"""The groups of commands."""

LATEST = OUT / "latest"
"""The link to the folder of the last run."""


ABOUT = (
    "Find what CUDA-graph replay does to the KV caches of LLM engines. Exit codes: 0 as expected, "
    "1 finding, 2 malformed input, 125 no verdict, 130 interrupted."
)
"""The first paragraph of `paritybit --help`."""


Function = TypeVar("Function", bound=Callable[..., int])


@dataclass(frozen=True)
class Line:
    """A command line: its words, and the signals of its process."""

    words: Sequence[str]
    stop: Stop


class Commands(TyperGroup):
    """The group of all commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section of the help for each group of commands."""
        commands: list[Any] = list(self.commands.values())
        for panel in dict.fromkeys(command.rich_help_panel for command in commands):
            with formatter.section(panel):
                formatter.write_dl(
                    [
                        (f"{command.name:8}", command.get_short_help_str(limit=80))
                        for command in commands
                        if command.rich_help_panel == panel
                    ]
                )


class Command(TyperCommand):
    """A command. An option of one value that is given twice is an error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command. Raises UsageError if they are malformed."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        times: Counter[Any] = Counter(order)
        for option in times:
            if times[option] > 1 and option.param_type_name == "option" and not option.multiple:
                raise typer.BadParameter("it was given more than once", ctx=ctx, param=option)
        return super().parse_args(ctx, args)


HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}

app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None)


def command(group: str, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
    """Return the decorator of the function of a command."""
    return app.command(name, cls=Command, rich_help_panel=group, context_settings=HELP | settings)


def run(line: Line) -> int:
    """Run a command line and return its exit code. Raises MalformedError if it is malformed."""
    top: Any = get_command(app)
    try:
        with top.make_context("paritybit", list(line.words), obj=line) as context:
            code: int = top.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    except UsageError as error:
        raise MalformedError(sentence_of(error)) from error
    return code


def sentence_of(error: Any) -> str:
    """Return what is wrong with a command line, and what is valid."""
    message = error.format_message().rstrip(".").replace("Value error, ", "")  # pydantic's words
    command = error.ctx.command if error.ctx is not None else None
    if isinstance(command, Commands):
        message += f"; valid: {', '.join(command.commands)}"
    where = error.ctx.command_path if error.ctx is not None else "paritybit"
    return f"{message} (see {where} --help)"


def print_version(asked: bool) -> None:
    """Print the version and end, if that is asked for."""
    if asked:
        typer.echo(f"paritybit {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version")
]


@app.callback(context_settings=HELP, help=ABOUT)
def paritybit(version: Version = False) -> None:
    """Handle the options that come before a command."""


Device = Literal["auto", "cpu", "cuda"]
Undecided = Literal["fail", "warn"]
Kind = Literal["bugs", "runners", "presets", "properties", "findings", "words"]
EngineName = Literal["sglang", "transformers", "vllm"]


def number(about: str, default: str | bool = True, least: int = 1, most: int = MOST) -> Any:
    """Return an option with a whole number. `default` is shown where the default is None."""
    return typer.Option(parser=count(least, most), metavar="N", show_default=default, help=about)


def file(about: str, default: str | bool = True) -> Any:
    """Return an option with the path of a file or folder."""
    return typer.Option(parser=path, metavar="PATH", show_default=default, help=about)


def listed(about: str, default: str = "all") -> Any:
    """Return an option with comma-separated names, which may be given several times."""
    return typer.Option(callback=names, metavar="NAMES", show_default=default, help=about)


ENGINE = "Release such as sglang==0.5.23, or the folder of a source tree"

Out = Annotated[Path, file("Folder in which each run creates its own folder")]
Seed = Annotated[int, number("Random seed", least=0)]
Seconds = Annotated[int, number("Seconds of the run, with the starts of the engine")]
DeviceOption = Annotated[Device, typer.Option(help="Device to use")]
Engine = Annotated[str | None, typer.Option(metavar="ENGINE", help=ENGINE)]
NeededEngine = Annotated[str, typer.Option(metavar="ENGINE", help=ENGINE)]
Case = Annotated[Path, typer.Argument(parser=path, help="Case file that watch wrote")]


@command(ENGINES, allow_interspersed_args=False)
def watch(
    context: typer.Context,
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Command whose processes are checked"),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help=f"{ENGINE}, to serve generated requests to"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Serve only this shape of a model, such as gemma4")
    ] = None,
    device: Annotated[Device | None, typer.Option(help="Device of the engine")] = None,
    seed: Annotated[int | None, number("Random seed of model and requests", "0", least=0)] = None,
    seconds: Annotated[
        int | None, number("Seconds of the run, with the starts of the engine", "300")
    ] = None,
    settings: Annotated[
        list[str],
        listed("Rows of settings, such as 'page size 16 + overlap'", "the seed's covering array"),
    ] = [],  # noqa: B006
    rows: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="Rows of the covering array, such as 9-20 or 9-"),
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Serve the other rows after a finding, too")
    ] = False,
    checks: Annotated[list[str], listed("Checks to run, such as stray-write")] = [],  # noqa: B006
    every: Annotated[int, number("Check about one in N forward passes")] = 1,
    known: Annotated[
        Path | None,
        file("Known findings, which do not fail the run", "paritybit-known.json in ENGINE"),
    ] = None,
    baseline: Annotated[
        Path | None, file("Record of an earlier run, whose findings do not fail this one")
    ] = None,
    undecided: Annotated[
        Undecided, typer.Option(help="What a run without a verdict does")
    ] = "fail",
    out: Out = OUT,
) -> int:
    """Check an engine, or a command's processes, with the sanitizer.

    Give either --engine, or a command after --.
    """
    from paritybit.harness.cli.watch.run import Options, run_watch

    options = Options(
        words=context.obj.words,
        command=tuple(program or ()),
        engine=engine,
        model=model,
        device=device,
        seed=seed,
        seconds=seconds,
        settings=settings,
        rows=rows,
        keep_going=keep_going,
        checks=checks,
        every=every,
        known=known,
        baseline=baseline,
        warn=undecided == "warn",
        out=out,
    )
    return run_watch(options)


@command(ENGINES)
def releases(
    engine: Annotated[
        EngineName, typer.Option(help="Engine whose releases are watched")
    ] = "sglang",
    releases: Annotated[
        list[str], listed("Releases, or newest", "all whose hashes are pinned")
    ] = [],  # noqa: B006
    seconds: Annotated[int, number("Seconds for each release")] = 300,
    seed: Seed = 0,
    out: Annotated[Path, file("Folder of all results; results in it are kept")] = OUT / "releases",
) -> int:
    """Watch releases of an engine, and show which have which finding."""
    from paritybit.harness.cli.watch.releases import run_releases

    return run_releases(engine, releases, seconds, seed, out)


@command(ENGINES)
def explore(
    engine: NeededEngine,
    slots: Annotated[int, number("Pages in the pool")] = 18,
    requests: Annotated[int, number("Requests at a time")] = 2,
    depth: Annotated[int, number("Actions in a schedule")] = 12,
    page_size: Annotated[int, number("Tokens in a page")] = 1,
    window: Annotated[int, number("Tokens of the sliding window")] = 2,
    keys: Annotated[
        int, number("Tokens in a key of sglang's prefix cache; 2 as with EAGLE", most=2)
    ] = 1,
    seconds: Annotated[int, number("Seconds after which the search stops")] = 120,
    out: Out = OUT,
) -> int:
    """Explore every schedule of an engine's prefix cache up to a bound."""
    from paritybit.harness.cli.explore import run_explore

    from paritybit.explore.bound import Bound

    bound = Bound(slots=slots, requests=requests, page_size=page_size, window=window, keys=keys)
    return run_explore(engine, bound, depth, seconds, out)


@command(ENGINES)
def engine(
    version: Annotated[
        str, typer.Argument(help="Release, such as vllm==0.33.0; 0.5.23 is one of sglang")
    ],
) -> int:
    """Download a release of an engine into a folder of its own."""
    from paritybit.drive.adapters import release_of
    from paritybit.engines import fetch

    adapter, number = release_of(version)
    found = adapter.prepare(f"{adapter.package.name}=={number}")
    typer.echo(f"{found.name} is in {fetch.folder()}")
    return 0


@command(FINDINGS)
def replay(
    case: Annotated[list[Path], typer.Argument(parser=path, help="Case files, or folders of them")],
    engine: Engine = None,
) -> int:
    """Replay cases.

    One case: 0 if every property holds, 1 if one is violated. Several cases: 0 if each reproduces
    its recorded result, 1 if one does not. The case of an engine needs --engine.
    """
    from paritybit.harness.cli.replay import run_replay

    return run_replay(case, engine)


@command(FINDINGS)
def shrink(
    case: Case,
    engine: NeededEngine,
    seconds: Annotated[int, number("Seconds of the search")] = 120,
) -> int:
    """Find a smaller case of watch with the same finding.

    It is written next to the case, as CASE-small.json. 1 if the finding appeared, else 125.
    """
    from paritybit.harness.cli.watch.shrink import run_shrink

    return run_shrink(case, engine, seconds)


@command(FINDINGS)
def report(
    record: Annotated[
        Path,
        typer.Argument(parser=path, help="Record or folder of a run; watch may have been killed"),
    ] = LATEST,
    later: Annotated[
        Path | None,
        typer.Argument(parser=path, help="Record or folder of a later run of watch, to compare"),
    ] = None,
    page: Annotated[Path | None, file("File of the page", "index.html next to the record")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a summary in Markdown, such as for CI")
    ] = False,
    issue: Annotated[
        bool, typer.Option("--issue", help="Print an issue for each cause of findings of watch")
    ] = False,
) -> int:
    """Write the page of a run, compare two runs, or write issues.

    Of two runs of watch: 0 if the later one is no worse, 1 if a finding is new or worse, and 125 if
    it has no verdict where the earlier one had one.
    """
    from paritybit.harness.cli.report import run_report

    return run_report(record, later, page, markdown=markdown, issue=issue)


@command(LABORATORY)
def regress(
    context: typer.Context,
    pytest: Annotated[
        list[str] | None, typer.Argument(metavar="-- PYTEST OPTIONS", help="Options for pytest")
    ] = None,
    bug: Annotated[list[str], listed("Bugs, each BUG or BUG@RUNNER")] = [],  # noqa: B006
    runner: Annotated[list[str], listed("Runners")] = [],  # noqa: B006
    preset: Annotated[list[str], listed("Models")] = [],  # noqa: B006
    seed: Seed = 0,
    mps: Annotated[
        bool, typer.Option("--mps", help="Start an NVIDIA MPS daemon, to share GPUs")
    ] = False,
    device: DeviceOption = "auto",
    out: Out = OUT,
) -> int:
    """Test the built-in engine without a bug, then with each known bug.

    Options for pytest come after --, such as: -- -n 4 --hypothesis-profile nightly.
    """
    from paritybit.harness.cli.regress import run_regress

    line: Line = context.obj
    if pytest and "--" not in line.words:
        raise MalformedError(f"unexpected argument {pytest[0]!r}; options for pytest come after --")
    line.stop.raise_if_swallowed()
    return run_regress(
        bugs=bug,
        runners=runner,
        presets=preset,
        seed=seed,
        mps=mps,
        device="cuda" if mps and device == "auto" else device,
        out=out,
        pytest=pytest or (),
        words=line.words,
    )


@command(LABORATORY, "list")
def list_names(
    kind: Annotated[
        Kind | None, typer.Argument(show_default="a summary of all", help="Kind of names")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> int:
    """List bugs, runners, models, properties, findings or words."""
    from paritybit.harness.cli.names import run_list

    return run_list(kind, as_json=json)
