"""How pytest runs the suite: options, device, GPU-aware workers, profiles, artifacts.

Imports nothing that imports torch before a worker has been pinned to its GPU, and the
controlling process never initialises CUDA.
"""

import gc
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from paritybit.harness.cli.exit_codes import CANNOT_RUN
from paritybit.harness.errors import CannotRunError
from paritybit.harness.machine import mps
from paritybit.harness.machine.forks import GARBAGE
from paritybit.harness.machine.gpus import VISIBLE, gpu_names, visible_gpus
from paritybit.harness.machine.workers import Workers, processes_on
from paritybit.reports.annotations import github_error, on_github
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ARTIFACTS = Path("paritybit-out/pytest")
"""Where failing cases go; each worker has a folder of its own, merged at the end."""

os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY", str(Path("paritybit-out/hypothesis").resolve())
)

if sys.dont_write_bytecode:  # Compiling takes half of the time of collecting.
    sys.pycache_prefix = sys.pycache_prefix or str(Path("paritybit-out/bytecode").resolve())
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Else each child compiles what it imports.
    sys.dont_write_bytecode = False

settings.register_profile("dev", max_examples=25, deadline=None, print_blob=True)
settings.register_profile("ci", max_examples=4, deadline=None, derandomize=True, database=None)
settings.register_profile("nightly", max_examples=250, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add this suite's options, in one group."""
    group = parser.getgroup("paritybit", "differential parity of graph replay")
    group.addoption(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="Device to run on: auto, cpu or cuda; auto uses CUDA if available",
    )
    group.addoption(
        "--mps",
        action="store_true",
        help="Start an NVIDIA MPS daemon for this run so that processes can share a GPU",
    )
    group.addoption("--runner", default=None, help="Run only this runner")
    group.addoption("--preset", default=None, help="Run only this model preset")
    group.addoption(
        "--bug", default=None, help="Run the clean tests on an engine with this bug switched on"
    )


def chosen_device(config: pytest.Config) -> str:
    """Return cpu or cuda. Raises UsageError for cuda where there is no GPU."""
    asked: str = config.getoption("--device")
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None:
        return str(worker_input["paritybit_device"])
    gpus = visible_gpus()
    if asked == "cuda" and not gpus:
        raise pytest.UsageError("--device cuda needs a GPU, but none is visible")
    if asked == "auto":
        return "cuda" if gpus else "cpu"
    return asked


@pytest.hookimpl(trylast=True)  # after Hypothesis has loaded the profile asked for
def pytest_configure(config: pytest.Config) -> None:
    """Choose profile, device and seed; pin a worker to its GPU before torch is imported."""
    if not config.getoption("--hypothesis-profile", None):
        settings.load_profile("ci")  # Few schedules reach every runner by this seed, not by any.
    config.stash[DEVICE] = chosen_device(config)
    config.stash[COUNTS], config.stash[STARTED] = Counter(), time.monotonic()
    config.option.loadscopereorder = False  # Workers order the tests.
    worker_input = getattr(config, "workerinput", None)
    if worker_input is None:
        share_gpus(config)
        derandomized = settings().derandomize
        asked = config.getoption("--hypothesis-seed", None)
        drawn = 0 if derandomized else random.SystemRandom().randrange(2**31)
        config.stash[SEED] = drawn if asked is None else int(asked)
        return
    config.stash[SEED] = int(worker_input["paritybit_seed"])
    # A shell ignores these for what it starts in the background, and tests of signals need them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gpus = visible_gpus()
    if config.stash[DEVICE] == "cuda" and gpus:
        number = int(re.sub(r"\D", "", str(worker_input["workerid"])) or 0)
        os.environ[VISIBLE] = gpus[number % len(gpus)]


def share_gpus(config: pytest.Config) -> None:
    """Start the MPS daemon that is asked for, until the end; without it nothing is run."""
    if not config.getoption("--mps"):
        return
    daemon = ExitStack()
    try:
        daemon.enter_context(mps.private_daemon(config.stash[DEVICE]))
    except CannotRunError as error:
        pytest.exit(str(error), CANNOT_RUN)
    config.add_cleanup(daemon.close)


DEVICE = pytest.StashKey[str]()
SEED = pytest.StashKey[int]()
STARTED = pytest.StashKey[float]()
COUNTS = pytest.StashKey[Counter[str]]()
CLEARED = pytest.StashKey[bool]()
"""Set once this run, which executes tests, has cleared the artifacts of the last."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many workers as do the most work here: see `processes_on`."""
    device = chosen_device(config)
    shared = device == "cuda" and (config.getoption("--mps") or mps.answers())
    return processes_on(device, len(visible_gpus()), mps=shared)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Hand a worker the device and the seed that this process chose."""
    node.workerinput["paritybit_device"] = node.config.stash[DEVICE]
    node.workerinput["paritybit_seed"] = node.config.stash[SEED]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send all tests that share the playing of a trial, or a file, to one worker."""
    return ByTrial(config, log)


class ByTrial(LoadScopeScheduling):  # type: ignore[misc]  # xdist leaves it untyped
    """Hands out tests by what they share."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_scope(nodeid)


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests by what takes long: scopes with one marked `long`, then the largest scopes.

    Workers start them in this order, so that none is waited for at the end.
    """
    sizes = Counter(shared_scope(item.nodeid) for item in items)
    long = {shared_scope(item.nodeid) for item in items if item.get_closest_marker("long")}

    def order(item: pytest.Item) -> tuple[bool, int]:
        scope = shared_scope(item.nodeid)
        return scope not in long, -sizes[scope]

    return sorted(items, key=order)


ALONE = (
    "properties/verdicts/test_corpus.py",
    "properties/harness/cli/",
    "properties/harness/machine/",
    "properties/verdicts/test_detection.py",
)
"""Where tests share nothing: each captures an engine of its own, or starts a process or more."""


def shared_scope(nodeid: str) -> str:
    """Return what a test shares with others: a clean trial or its file. Or itself, if nothing.

    Tests of one file share what is captured or set up for them. One worker plays them all, so
    that a file whose tests take long and share nothing would be waited for at the end.
    """
    clean_trial = re.search(r"test_clean\.py::\w+\[(.*page\d+)", nodeid)
    if clean_trial:
        return clean_trial[1]
    return nodeid if nodeid.startswith(ALONE) else nodeid.partition("::")[0]


def pytest_report_header(config: pytest.Config) -> str:
    """Say which device the worlds live on, and what would draw the same schedules again."""
    bug = config.getoption("--bug")
    return (
        f"paritybit: device {config.stash[DEVICE]}, seed {config.stash[SEED]}, "
        f"{settings().max_examples} schedules per trial"
        + (f", bug {bug} switched on: tests are expected to fail" if bug else "")
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse names that this build lacks; without any named, import nothing that takes long."""
    options = ("runner", "preset", "bug")
    asked = {option: session.config.getoption(f"--{option}") for option in options}
    if set(asked.values()) == {None}:
        return
    from paritybit.harness.errors import UnknownNameError, known
    from paritybit.reference.config import PRESETS
    from paritybit.subjects.bugs.catalogue import BUGS
    from paritybit.subjects.runners import RUNNERS

    valid: tuple[Iterable[str], ...] = (RUNNERS, PRESETS, BUGS)
    for option, names in zip(options, valid, strict=True):
        try:
            if asked[option] is not None:
                known(option, asked[option], names)
        except UnknownNameError as error:
            raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Clear the last run's artifacts before the tests of this one, where no worker runs them."""
    if session.testscollected and not session.config.option.collectonly:
        clear_artifacts(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: list[str]) -> None:
    """Clear the last run's artifacts before the first worker is given a test."""
    if ids:
        clear_artifacts(node.config)


def clear_artifacts(config: pytest.Config) -> None:
    """Clear the last run's artifacts, once, in the process that no other one started."""
    if CLEARED not in config.stash and not hasattr(config, "workerinput"):
        shutil.rmtree(ARTIFACTS, ignore_errors=True)
        config.stash[CLEARED] = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a bug switched on, keep only what a clean build must pass. Order what is spread."""
    if config.getoption("--bug") is not None:
        kept = [item for item in items if item.get_closest_marker("clean")]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items)


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what was imported: it all stays. And look seldom."""
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run `clean_trial` over the trials that the options leave."""
    if "clean_trial" not in metafunc.fixturenames:
        return
    from properties.support.trials import clean_trials, name

    config = metafunc.config
    runner, preset, bug = (
        config.getoption(f"--{option}") for option in ("runner", "preset", "bug")
    )
    trials = clean_trials(config.stash[DEVICE], runner, preset, bug)
    metafunc.parametrize("clean_trial", trials, ids=[name(trial) for trial in trials])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's counts to the controlling process."""
    worker_output = getattr(session.config, "workeroutput", None)
    if worker_output is not None:
        counts = session.config.stash[COUNTS]
        worker_output["paritybit_counts"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Add up the counts of a worker that is done; one that crashed has none."""
    output = getattr(node, "workeroutput", {})
    counts: Counter[str] = node.config.stash[COUNTS]
    counts.update(output.get("paritybit_counts", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how much was played; merge the workers' cases, and say how each is replayed."""
    if CLEARED not in config.stash:  # A worker, or no test was run.
        return
    counts = config.stash[COUNTS]
    terminalreporter.write_line(
        f"paritybit: {counts['trials']} clean trials on {config.stash[DEVICE]}: "
        f"{counts['schedules']} schedules, {counts['steps']} differential steps, "
        f"{counts['replays']} replays ({counts['padded_replays']} padded)"
    )
    stats = terminalreporter.stats
    if on_github():
        for report in (*stats.get("failed", ()), *stats.get("error", ())):
            terminalreporter.write_line(annotation(report))
    write_summary(config, {key: len(reports) for key, reports in stats.items() if key})
    merged = ARTIFACTS / "cases"
    found = sorted(ARTIFACTS.glob("worker-*/*.json"))
    for path in found:
        merged.mkdir(parents=True, exist_ok=True)
        path.replace(merged / path.name)
    for path in found:
        terminalreporter.write_line(f"to replay: paritybit replay {merged / path.name}")


def annotation(report: pytest.TestReport) -> str:
    """Return what shows a failed test beside its line, in a job of GitHub's.

    pytest-github-actions-annotate-failures says nothing where workers run the tests.
    """
    file, line, name = report.location
    crash = getattr(report.longrepr, "reprcrash", None)
    message = f"{name}: {crash.message if crash is not None else report.longreprtext}"
    return github_error(message, file=file, line=(line or 0) + 1)


def write_summary(config: pytest.Config, tests: dict[str, int]) -> None:
    """Write what was run, on what and how it ended, as JSON; red or green."""
    from paritybit.harness.records.record import write_evidence

    counts = config.stash[COUNTS]
    figures = {
        "bug": config.getoption("--bug"),
        "seed": config.stash[SEED],
        "schedules_a_trial": settings().max_examples,
        "tests": tests,
        "seconds": round(time.monotonic() - config.stash[STARTED], 1),
        "clean": dict(counts),
    }
    device = config.stash[DEVICE]
    name = ", ".join(gpu_names()) if device == "cuda" else None
    write_evidence("suite", device, figures, ARTIFACTS / "summary.json", workers_of(config), name)


def workers_of(config: pytest.Config) -> Workers:
    """Return over how many workers the tests were spread, and how these used the GPUs."""
    processes = config.getoption("numprocesses", None) or 0
    if config.stash[DEVICE] == "cpu":
        return Workers(processes)
    return Workers(processes, tuple(visible_gpus()), mps.answers())


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed the global generators before each test, that of torch once torch is imported."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The device the worlds live on."""
    return request.config.stash[DEVICE]


@pytest.fixture(scope="session")
def played(request: pytest.FixtureRequest) -> Counter[str]:
    """Counts of what the clean trials played, for the summary."""
    return request.config.stash[COUNTS]


@pytest.fixture(scope="session")
def hunter_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this session's hunts: 0 under the ci profile, drawn anew under any other."""
    return request.config.stash[SEED]


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """The folder of this worker's failing cases; without pytest-xdist there is one."""
    folder = ARTIFACTS / f"worker-{os.environ.get('PYTEST_XDIST_WORKER', 'master')}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
