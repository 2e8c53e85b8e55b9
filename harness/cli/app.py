"""The command line: nine commands in three groups.

Each function imports what its command needs, so help and errors in a command line wait for neither
torch nor an engine.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import typer
from paritybit.harness.cli.folders import LATEST, OUT, command_of
from paritybit.harness.errors import MalformedError, quote
from paritybit.harness.machine.stopping import Stop
from typer.core import TyperGroup
from typer.main import get_command

from paritybit import __version__

UsageError: Any = typer.BadParameter.__base__
"""The class of all errors in a command line. Its module depends on the release of typer."""

ENGINES, FINDINGS, LABORATORY = "Test an engine", "Handle a finding", "The laboratory"

MOST = 999_999_999


ABOUT = (
    "Find what CUDA-graph replay does to the KV caches of LLM engines. Exit codes: 0 as expected, "
    "1 finding, 2 malformed input, 125 no verdict, 130 or 143 interrupted."
)


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


HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}

app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None)


def command(group: str, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
    """Return the decorator of the function of a command."""
    return app.command(name, rich_help_panel=group, context_settings=HELP | settings)


def run(line: Line) -> int:
    """Run a command line and return its exit code. Raises MalformedError if it is malformed."""
    top: Any = get_command(app)
    try:
        with top.make_context("paritybit", list(line.words), obj=line) as context:
            code: int = top.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    except UsageError as error:
        named = [word for word in line.words[:1] if word in top.commands]
        raise MalformedError(sentence_of(error, " ".join(["paritybit", *named]))) from error
    return code


def sentence_of(error: Any, command: str) -> str:
    """Return what is wrong with the line of a command, and what is valid."""
    message = error.format_message().rstrip(".").replace("Value error, ", "")  # pydantic's words
    option: Any = getattr(error, "param", None)
    least, most = (getattr(option, name, None) for name in ("min", "max"))
    if most is not None:
        kind = "a number" if isinstance(most, float) else "a whole number"
        message = f"Invalid value for '{option.opts[0]}': valid is {kind} from {least} to {most}"
    elif error.ctx is not None and isinstance(error.ctx.command, Commands) and " " not in command:
        message += f"; valid: {', '.join(error.ctx.command.commands)}"
    return f"{message} (see {command} --help)"


def print_version(requested: bool) -> None:
    """Print the version and end, if that is requested."""
    if requested:
        typer.echo(f"paritybit {__version__}")
        raise typer.Exit


VERSION = typer.Option(
    False, "--version", callback=print_version, is_eager=True, help="Print the version"
)


@app.callback(context_settings=HELP, help=ABOUT)
def paritybit(version: bool = VERSION) -> None:
    """Handle the options that come before a command."""


ROOM = "x" * 200
"""A path as long as any that paritybit writes below a folder."""


def names(values: Iterable[str]) -> list[str]:
    """Return the different names in comma-separated lists. Raises BadParameter without a name."""
    found: list[str] = []
    for value in values or ():
        listed = [name.strip() for name in value.split(",") if name.strip()]
        if not listed:
            raise typer.BadParameter(f"{quote(value)} contains no name")
        found += listed
    return list(dict.fromkeys(found))


def path(text: str | Path) -> Path:
    """Return the path of a file or folder, which need not exist.

    Raises BadParameter for an empty text, a name that is too long, a loop of links, and a folder
    that this user may not enter.
    """
    if not str(text):
        raise typer.BadParameter("the path is empty")
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            (Path(text).absolute() / ROOM).stat()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise typer.BadParameter(f"{quote(str(text))} is not a valid path: {why}") from error
    return Path(text)


Device = Literal["auto", "cpu", "cuda"]
Undecided = Literal["fail", "warn"]
Kind = Literal[
    "checks", "settings", "findings", "pages", "words", "bugs", "runners", "models", "properties"
]
EngineName = Literal["sglang", "transformers", "vllm"]


def flag(name: str, about: str) -> Any:
    """Return an option without a value."""
    return typer.Option(False, f"--{name}", help=about)


def number(default: int | None, about: str, least: int = 1, most: int = MOST, **more: Any) -> Any:
    """Return an option with a whole number."""
    return typer.Option(default, min=least, max=most, metavar="N", help=about, **more)


def file(default: Path | None, about: str, **more: Any) -> Any:
    """Return an option with the path of a file or folder."""
    return typer.Option(default, parser=path, metavar="PATH", help=about, **more)


def names_option(about: str, otherwise: str = "all") -> Any:
    """Return an option with comma-separated names, which may be given several times."""
    return typer.Option([], callback=names, metavar="NAMES", show_default=otherwise, help=about)


def seed_option(default: int | None = 0) -> Any:
    """Return the option for the random seed."""
    return number(default, "Random seed", least=0, show_default="0")


def engine_option(default: Any) -> Any:
    """Return the option for an engine. It is required if the default is `...`."""
    about = "sglang (newest), a release such as sglang==0.5.22, or the folder of a source tree"
    # typer 0.27 takes the name from the metavar.
    return typer.Option(default, "--engine", metavar="ENGINE", help=about)


def with_release(engine: str) -> str:
    """Return an engine, which is the newest release for a name alone."""
    from paritybit.engines.fetch import with_version

    return with_version(engine)


RUNS = file(OUT, "Folder in which each run creates its own folder")


@command(ENGINES, allow_interspersed_args=False)
def watch(
    context: typer.Context,
    program: list[str] = typer.Argument(
        None, metavar="COMMAND", help="Command whose processes are checked"
    ),
    engine: str | None = engine_option(None),
    base: str | None = typer.Option(
        None,
        metavar="ENGINE",
        help="Engine without the changes that may cause a finding",
        show_default="the most similar release that is downloaded",
    ),
    model: str | None = typer.Option(None, help="Serve only this shape of a model, such as gemma4"),
    device: Device | None = typer.Option(None, help="Device of the engine", show_default="auto"),
    seed: int | None = seed_option(None),
    seconds: int | None = number(
        None, "Seconds of the run, with the starts of the engine", show_default="300"
    ),
    settings: list[str] = names_option(
        "Configurations, such as 'page size 16 + overlap': see list settings",
        "the seed's covering array",
    ),
    keep_going: bool = flag("keep-going", "Serve the other configurations after a finding, too"),
    tp: int = number(1, "Tensor-parallel ranks of the engine", most=8),
    pp: int = number(1, "Pipeline-parallel ranks of the engine", most=8),
    dp: int = number(1, "Data-parallel ranks of the engine", most=8),
    checks: list[str] = names_option("Checks to run, such as stray-write"),
    every: int = number(1, "Check about one in N forward passes"),
    overhead: float = typer.Option(
        0.0,
        metavar="PERCENT",
        min=0.0,
        max=100.0,
        help="Check as many forward passes as take about this share of the time",
        show_default="any",
    ),
    known: Path | None = file(
        None,
        "Known findings, which do not fail the run",
        show_default="paritybit-known.json in ENGINE",
    ),
    baseline: Path | None = file(
        None, "Record of an earlier run, whose findings do not fail this one"
    ),
    undecided: Undecided = typer.Option("fail", help="What a run without a verdict does"),
    out: Path = RUNS,
) -> int:
    """Check an engine, or a command's processes, with the sanitizer.

    Give either --engine, or a command after --.
    """
    from paritybit.harness.cli.watch.run import checks_of, run_watch

    from paritybit.launch.known import known_findings
    from paritybit.launch.record import WatchOptions

    options = WatchOptions(
        command=command_of(context.obj.words),
        program=tuple(program or ()),
        engine=engine,
        base=base,
        model=model,
        device=device,
        seed=seed,
        seconds=seconds,
        settings=settings,
        keep_going=keep_going,
        parallel={name: n for name, n in (("tp", tp), ("pp", pp), ("dp", dp)) if n > 1},
        checks=checks_of(checks),
        every=every,
        overhead=overhead,
        known=known_findings(known, engine, baseline),
        warn=undecided == "warn",
        out=out,
    )
    return run_watch(options)


@command(ENGINES)
def releases(
    engine: EngineName = typer.Option("sglang", help="Engine whose releases are watched"),
    releases: list[str] = names_option("Releases, or newest", "all whose hashes are pinned"),
    seconds: int = number(300, "Seconds for each release"),
    seed: int = seed_option(),
    out: Path = file(OUT / "releases", "Folder of all results; results in it are kept"),
) -> int:
    """Watch releases of an engine, and show which have which finding."""
    from paritybit.harness.cli.watch.releases import run_releases

    return run_releases(engine, releases, seconds, seed, out)


@command(ENGINES)
def explore(
    engine: str = engine_option(...),
    slots: int = number(18, "Pages in the pool"),
    requests: int = number(2, "Requests at a time"),
    depth: int = number(12, "Actions in a schedule"),
    page_size: int = number(1, "Tokens in a page"),
    window: int = number(2, "Tokens of the sliding window"),
    keys: int = number(1, "Tokens in a key of sglang's prefix cache; 2 as with EAGLE", most=2),
    seconds: int = number(120, "Seconds after which the search stops"),
    out: Path = RUNS,
) -> int:
    """Explore every schedule of an engine's prefix cache up to a bound."""
    from paritybit.harness.cli.explore import run_explore

    from paritybit.explore.bound import Bound

    bound = Bound(slots=slots, requests=requests, page_size=page_size, window=window, keys=keys)
    return run_explore(with_release(engine), bound, depth, seconds, out)


@command(ENGINES)
def engine(
    version: str = typer.Argument(help="vllm (newest), or a release such as vllm==0.33.0"),
) -> int:
    """Download a release of an engine into a folder of its own."""
    from paritybit.drive.adapters import release_of
    from paritybit.engines import fetch

    adapter, number = release_of(with_release(version))
    found = adapter.prepare(f"{adapter.package.name}=={number}")
    typer.echo(f"{found.name} is in {fetch.folder()}")
    return 0


@command(FINDINGS)
def replay(
    case: list[Path] = typer.Argument(parser=path, help="Case files, or folders of them"),
    engine: str | None = engine_option(None),
) -> int:
    """Replay cases, and tell whether their recorded findings appear.

    1 if one does, else 125 if a case has no verdict, for example if only other findings appear,
    else 0. A case that was recorded on an engine needs --engine, whose known findings count as 0.
    """
    from paritybit.harness.cli.replay import run_replay

    return run_replay(case, engine and with_release(engine))


@command(FINDINGS)
def shrink(
    case: Path = typer.Argument(parser=path, help="Case file that watch wrote"),
    engine: str = engine_option(...),
    seconds: int = number(120, "Seconds of the search"),
) -> int:
    """Find a smaller case of watch with the same finding.

    It is written next to the case, as CASE-small.json. 1 if the finding appeared, else 125.
    """
    from paritybit.harness.cli.watch.shrink import run_shrink

    return run_shrink(case, with_release(engine), seconds)


@command(FINDINGS)
def report(
    record: Path = typer.Argument(
        OUT / LATEST, parser=path, help="Record or folder of a run; watch may have been killed"
    ),
    later: Path | None = typer.Argument(
        None, parser=path, help="Record or folder of a later run of watch, to compare"
    ),
    markdown: bool = flag("markdown", "Print a summary in Markdown, such as for CI"),
    issue: bool = flag("issue", "Write a report of each new cause for the engine's authors"),
) -> int:
    """Write the page of a run, or compare two runs.

    Of two runs of watch: 1 if a cause is new in the later one, else 125 if it has no verdict where
    the earlier one had one, else 0.
    """
    if issue:
        from paritybit.harness.cli.issue import run_issue

        return run_issue(record, later, markdown=markdown)
    from paritybit.harness.cli.report import run_report

    return run_report(record, later, markdown=markdown)


@command(LABORATORY)
def regress(
    context: typer.Context,
    pytest: list[str] = typer.Argument(
        None, metavar="-- PYTEST OPTIONS", help="Options for pytest"
    ),
    bug: list[str] = names_option("Bugs, each BUG or BUG@RUNNER"),
    runner: list[str] = names_option("Runners"),
    model: list[str] = names_option("Models"),
    seed: int = seed_option(),
    device: Device = typer.Option("auto", help="Device to use"),
    out: Path = RUNS,
) -> int:
    """Test the built-in engine without a bug, then with each known bug.

    Options for pytest come after --, such as: -- -n 4 --hypothesis-profile nightly.
    """
    from paritybit.harness.cli.regress import run_regress

    line: Line = context.obj
    if pytest and "--" not in line.words:
        raise MalformedError(f"unexpected argument {pytest[0]!r}; options for pytest come after --")
    if line.stop.received is not None:  # A library has caught its exception.
        raise KeyboardInterrupt
    return run_regress(
        bugs=bug,
        runners=runner,
        models=model,
        seed=seed,
        device=device,
        out=out,
        pytest=pytest or (),
        words=line.words,
    )


@command(LABORATORY, "list")
def list_names(
    kind: Kind | None = typer.Argument(None, show_default="a summary of all", help="Kind of names"),
    json: bool = flag("json", "Print JSON"),
) -> int:
    """List checks, settings, findings of releases, pages and more."""
    from paritybit.harness.cli.names import run_list

    return run_list(kind, as_json=json)
