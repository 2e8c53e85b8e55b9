"""A pytest plugin that shuffles the tests, and fails those that leave something changed.

Imports no torch, because a worker is pinned to its GPU before torch is imported. Once the process
has imported torch, its settings are compared too.
"""

import functools
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Facts = Mapping[str, object]
"""What is compared, by name."""

OWN = ("paritybit.", "properties.support.")
"""The packages whose variables tests leave alone. Those of its own file a test may change."""

OF_PROCESS = frozenset({"paritybit.harness.machine.forks:_Server.asked"})
"""Variables that the code sets on first use for the rest of the process: its server of forks."""

OF_LIBRARIES = frozenset({"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})
"""Environment variables that pytest, torch and triton set themselves."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that shuffles."""
    parser.getgroup("paritybit").addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        default=os.environ.get("PARITYBIT_SHUFFLE"),
        help="Run the tests in an order drawn from this seed; default: PARITYBIT_SHUFFLE",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Undo patches of instances completely."""
    pytest.MonkeyPatch.setattr = taking_back(pytest.MonkeyPatch.setattr)  # type: ignore[method-assign]


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the line that says how to get the same order again."""
    seed = config.getoption("--shuffle")
    return None if seed is None else f"paritybit: tests shuffled by --shuffle {seed}"


@pytest.hookimpl(trylast=True)  # pytest and other plugins sort first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the tests, where that is asked for."""
    if config.getoption("--shuffle") is not None:
        random.Random(config.getoption("--shuffle")).shuffle(items)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves the process changed. Each test has the same random numbers."""
    seed_generators()
    before = of_process()
    yield
    left = changed({**of_torch(), **before}, of_process())  # A test may be the first with torch.
    assert not left, f"this test leaves other values behind: {', '.join(left)}"


@pytest.fixture(scope="module", autouse=True)
def no_variable_left() -> Iterator[None]:
    """Fail the last test of a file if the file leaves variables of our modules changed."""
    before = of_modules()
    yield
    left = changed(before, of_modules(), added=False)
    assert not left, f"tests of this file leave other values behind: {', '.join(left)}"


def seed_generators() -> None:
    """Give the global random generators the same state before each test."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if hasattr(torch := sys.modules.get("torch"), "default_generator"):
        assert torch is not None
        torch.default_generator.manual_seed(0)


def of_process() -> Facts:
    """Return what all tests of a process share: environment, signals, logging, torch."""
    return {
        "the working directory": Path.cwd(),
        "sys.path": tuple(sys.path),
        # A library may add a finder when a test first imports it.
        "finders in sys.meta_path": tuple(
            id(finder) for finder in sys.meta_path if type(finder).__module__.startswith(OWN)
        ),
        "sys.excepthook": sys.excepthook,
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "logging.disable": logging.root.manager.disable,
        **{
            f"environment variable {name}": value
            for name, value in os.environ.items()
            if name not in OF_LIBRARIES
        },
        **{f"handler of {one.name}": signal.getsignal(one) for one in SIGNALS},
        **of_torch(),
    }


def of_torch() -> Facts:
    """Return the settings of torch that hold for the whole process, none without torch.

    The number of threads is left out, because the harness sets it for its process.
    """
    torch: Any = sys.modules.get("torch")
    modules: Any = sys.modules.get("torch.nn.modules.module")
    if not hasattr(torch, "is_inference_mode_enabled") or modules is None:
        return {}
    return {
        "torch.get_default_dtype": torch.get_default_dtype(),
        "torch.is_grad_enabled": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled": torch.is_inference_mode_enabled(),
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "modes of torch functions": torch._C._len_torch_function_stack(),
        "modes of torch dispatch": torch._C._len_torch_dispatch_stack(),
        "global hooks of torch modules": tuple(
            len(value)
            for name, value in vars(modules).items()
            if name.startswith("_global_") and isinstance(value, dict)
        ),
    }


def of_modules() -> Facts:
    """Return the variables of this project's modules, and the attributes of their classes.

    A variable counts as changed if it is another object, or a container of another size.
    """
    found: dict[str, object] = {}
    for module in [name for name in sys.modules if name.startswith(OWN)]:
        for name, value in tuple(vars(sys.modules[module]).items()):
            if name.startswith("__") or isinstance(value, ModuleType):
                continue
            found[f"{module}:{name}"] = identity(value)
            if isinstance(value, type) and value.__module__ == module:
                for key, attribute in tuple(vars(value).items()):
                    if not key.startswith(("__", "_abc_")):
                        found[f"{module}:{name}.{key}"] = identity(attribute)
    return {name: value for name, value in found.items() if name not in OF_PROCESS}


def identity(value: object) -> object:
    """Return what distinguishes a variable from one that was changed."""
    return id(value), len(value) if isinstance(value, (dict, list, set)) else 0


def changed(before: Facts, after: Facts, added: bool = True) -> list[str]:
    """Return the names of facts that differ. With `added`, also of those that are new."""
    names = {**before, **after} if added else before
    return [name for name in names if before.get(name) != after.get(name)]


def taking_back(set_attribute: Callable[..., None]) -> Callable[..., None]:
    """Return `MonkeyPatch.setattr` such that an undo leaves nothing on an instance.

    pytest before 9.2 sets the value that an instance inherits from its class as an attribute of
    the instance. A bound method then stays on an object that later tests share.
    """

    @functools.wraps(set_attribute)
    def patched(
        patch: pytest.MonkeyPatch, target: Any, name: Any, *value: Any, **raising: Any
    ) -> None:
        kind = type(target)
        inherited = getattr(kind, name, None) if value else None
        plain = inherited is not None and not hasattr(type(inherited), "__set__")
        if plain and not isinstance(target, (type, ModuleType)) and hasattr(target, "__dict__"):
            patch.setitem(vars(target), name, *value)
        else:
            set_attribute(patch, target, name, *value, **raising)

    return patched
