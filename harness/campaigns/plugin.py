"""The pytest plugin of clean trials and hunts: options, device, workers and parameters.

`paritybit regress` and the suite use it. It imports nothing that imports torch before a worker is
pinned to its GPU, and the controlling process never initialises CUDA.
"""

import os
import pickle
import random
import re
import signal
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from paritybit.harness.errors import CannotRunError, MalformedError
from paritybit.harness.machine.garbage import collect_rarely
from paritybit.harness.machine.gpus import VISIBLE, device_of, visible_gpus
from paritybit.harness.machine.workers import mps_answers, processes_on

if TYPE_CHECKING:
    from paritybit.harness.campaigns.plan import RunConfig
    from paritybit.harness.campaigns.task import Task
    from paritybit.harness.records.schema import TrialRow
    from xdist.workermanage import WorkerController

settings.register_profile("dev", max_examples=25, deadline=None, print_blob=True)
settings.register_profile("ci", max_examples=4, deadline=None, derandomize=True, database=None)
settings.register_profile("nightly", max_examples=250, deadline=None, print_blob=True)

DEVICE = pytest.StashKey[str]()
SEED = pytest.StashKey[int]()
RESULT = pytest.StashKey[bytes]()

ALL = "all"
"""The value of --hunt for all bugs on all runners."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in one group."""
    group = parser.getgroup("paritybit", "differential parity of graph replay")
    group.addoption(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="Device to run on: auto, cpu or cuda; auto uses CUDA if available",
    )
    group.addoption("--runner", default="", help="Run only these runners, comma-separated")
    group.addoption("--model", default="", help="Run only these models, comma-separated")
    group.addoption("--bug", default="", help="Run the clean tests on an engine with this bug")
    group.addoption(
        "--hunt",
        default="",
        help=f"Hunt these bugs, each BUG or BUG@RUNNER, or {ALL}; default: each on one runner",
    )


@pytest.hookimpl(trylast=True)  # After Hypothesis has loaded the requested profile.
def pytest_configure(config: pytest.Config) -> None:
    """Choose profile, device and seed. Pin a worker to its GPU."""
    if not config.getoption("--hypothesis-profile", None):
        settings.load_profile("ci")
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None:
        config.stash[DEVICE] = str(worker_input["paritybit_device"])
        config.stash[SEED] = int(worker_input["paritybit_seed"])
        # A shell ignores these for what it starts in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        pin(config.stash[DEVICE], worker_input["workerid"])
        return
    config.stash[DEVICE] = chosen_device(config)
    asked = config.getoption("--hypothesis-seed", None)
    drawn = 0 if settings().derandomize else random.SystemRandom().randrange(2**31)
    config.stash[SEED] = drawn if asked is None else int(asked)


def chosen_device(config: pytest.Config) -> str:
    """Return cpu or cuda. Raises UsageError for cuda where there is no GPU."""
    try:
        return device_of(config.getoption("--device"))
    except CannotRunError as error:
        raise pytest.UsageError(str(error)) from error


def pin(device: str, worker: str) -> None:
    """Let this process see one GPU. The workers take the GPUs in turn."""
    gpus = visible_gpus()
    if device == "cuda" and gpus:
        number = int(re.sub(r"\D", "", worker) or 0)
        os.environ[VISIBLE] = gpus[number % len(gpus)]


def pytest_report_header(config: pytest.Config) -> str:
    """Return the device, and what draws the same schedules again."""
    bug = config.getoption("--bug")
    return (
        f"paritybit: device {config.stash[DEVICE]}, seed {config.stash[SEED]}, "
        f"{settings().max_examples} examples per property"
        + (f", bug {bug} switched on: tests are expected to fail" if bug else "")
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the best number of workers."""
    device = chosen_device(config)
    return processes_on(device, len(visible_gpus()), mps=device == "cuda" and mps_answers())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: "WorkerController") -> None:
    """Send a worker the device and the seed that this process chose."""
    node.workerinput["paritybit_device"] = node.config.stash[DEVICE]
    node.workerinput["paritybit_seed"] = node.config.stash[SEED]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let workers run neighbouring tests, and steal from each other at the end."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def words(config: pytest.Config, option: str) -> tuple[str, ...]:
    """Return the values of a comma-separated option."""
    return tuple(filter(None, str(config.getoption(option)).split(",")))


def run_config(config: pytest.Config) -> "RunConfig":
    """Return the settings of a run from the options. Raises UsageError for an unknown name."""
    from paritybit.harness.campaigns import plan
    from paritybit.harness.errors import require_known
    from paritybit.reference.config import PRESETS
    from paritybit.subjects.runners import RUNNERS

    bugs, hunted, runners = (words(config, name) for name in ("--bug", "--hunt", "--runner"))
    presets = words(config, "--model") or tuple(PRESETS)
    try:
        for preset in presets:
            require_known("model", preset, PRESETS)
        if bugs or hunted:
            hunts = plan.hunts_of(() if hunted == (ALL,) else bugs or hunted, runners)
        else:
            hunts = plan.one_hunt_per_bug(runners or RUNNERS)
    except MalformedError as error:
        raise pytest.UsageError(str(error)) from error
    examples = max(plan.EXAMPLES, settings().max_examples)
    seed, device = config.stash[SEED], config.stash[DEVICE]
    return plan.RunConfig(device, hunts, presets, seed, examples, every_scheme=bool(hunted))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run `task` over clean trials or hunts. With --bug, the clean tests get the hunts."""
    if "task" not in metafunc.fixturenames:
        return
    from paritybit.harness.campaigns.plan import clean_tasks, hunting_tasks

    clean = metafunc.function.__name__ == "test_clean_trial"
    broken = bool(metafunc.config.getoption("--bug"))
    tasks = (clean_tasks if clean and not broken else hunting_tasks)(run_config(metafunc.config))
    metafunc.parametrize("task", tasks, ids=[task.name for task in tasks])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tasks first, those of one clean trial together. With --bug, keep the clean tests."""
    if config.getoption("--bug"):
        kept = [item for item in items if item.get_closest_marker("clean")]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    groups: dict[Any, int] = {}

    def group(item: pytest.Item) -> float:
        callspec = getattr(item, "callspec", None)
        task = callspec.params.get("task") if callspec is not None else None
        return groups.setdefault(task.trial.clean, len(groups)) if task else float("inf")

    items.sort(key=group)


def pytest_collection_finish() -> None:
    """Let the garbage collector skip what was imported, and run rarely."""
    collect_rarely()


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Return the device that tests run on."""
    return request.config.stash[DEVICE]


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Callable[["Task"], "TrialRow"]:
    """Return the function that runs a task and keeps its result for the report of the test."""
    from paritybit.harness.campaigns.task import run_in_turn

    def keep(task: "Task") -> "TrialRow":
        result = run_in_turn(task)
        request.node.stash[RESULT] = pickle.dumps(result)
        return result

    return keep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Attach the result of a task to the report of its test."""
    report = yield
    if report.when == "call" and RESULT in item.stash:
        report.paritybit_result = item.stash[RESULT]
    return report
