"""The layers: which package may import which. Read from the sources, without importing them."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from paritybit.engines.fetch import PINS
from properties.support.places import PACKAGES, ROOT

ORDER = (
    "paritybit.compat",
    "paritybit.places",
    "paritybit.watch",
    "paritybit.connectors",
    "paritybit.reference",
    "paritybit.subjects",
    "paritybit.harness.errors",
    "paritybit.harness.machine",
    "paritybit.harness.schedules",
    "paritybit.harness.lockstep",
    "paritybit.harness.checks",
    "paritybit.harness.explain",
    "paritybit.harness.records",
    "paritybit.harness.campaigns",
    "paritybit.engines",
    "paritybit.drive",
    "paritybit.inject",
    "paritybit.launch",
    "paritybit.explore",
    "paritybit.testing",
    "paritybit.harness.cli",
)
"""The packages. Each may import from those before it."""

DATA_FOR_REPORTS = (
    "paritybit.harness.errors",
    "paritybit.harness.checks.property",
    "paritybit.harness.explain.facts",
    "paritybit.harness.lockstep.config",
    "paritybit.harness.records.case",
    "paritybit.harness.records.codec",
    "paritybit.harness.records.environment",
    "paritybit.harness.records.schema",
    "paritybit.launch.case",
    "paritybit.launch.schema",
    "paritybit.launch.words",
)
"""The modules that `reports` may import. They hold data."""


@cache
def sources() -> Mapping[str, Path]:
    """Return the modules of the product by name."""
    found = {}
    for top in PACKAGES:
        for path in sorted((ROOT / top).rglob("*.py")):
            inside = path.relative_to(ROOT / "paritybit" if top == "paritybit" else ROOT)
            parts = ("paritybit", *inside.with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(module: str) -> str:
    """Return the package of a module: one of ORDER, or `paritybit.reports`."""
    if module == "paritybit.__main__":
        return "paritybit.harness.cli"
    if module in {"paritybit", "paritybit.harness"}:
        return "paritybit.places"
    parts = module.split(".")
    return ".".join(parts[:3] if parts[1] == "harness" else parts[:2])


def imports(module: str) -> Iterator[str]:
    """Yield the modules that a module imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(sources()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in sources() else node.module for name in inside)


def allowed(module: str, other: str) -> bool:
    """Whether a module may import another."""
    mine, theirs = package_of(module), package_of(other)
    if mine == theirs:
        return True
    if mine == "paritybit.reports":
        return other in DATA_FOR_REPORTS
    if theirs == "paritybit.reports":
        return mine == "paritybit.harness.cli"
    return ORDER.index(theirs) < ORDER.index(mine)


@pytest.mark.parametrize("package", [*ORDER, "paritybit.reports"])
def test_a_package_imports_only_earlier_packages(package: str) -> None:
    mine = [module for module in sources() if package_of(module) == package]
    assert mine
    wrong = {
        f"{module} imports {other}"
        for module in mine
        for other in imports(module)
        if other in sources() and not allowed(module, other)
    }
    assert wrong == set()


def test_the_sanitizer_imports_only_torch_and_the_standard_library() -> None:
    """It runs inside an engine's process. Triton is imported where it is installed."""
    known = {"torch", "triton", *sys.stdlib_module_names}
    foreign = {
        f"{module} imports {other}"
        for module in sources()
        if package_of(module) == "paritybit.watch"
        for other in imports(module)
        if not other.startswith("paritybit.watch") and other.split(".")[0] not in known
    }
    assert foreign == set()


def test_packages_that_are_pinned_twice_have_one_version() -> None:
    """An engine's process finds the packages of the main environment before its own."""
    pins = [
        dict(re.split(r"==|[ ;\\]", line.lower())[:2] for line in lines if "==" in line)
        for lines in (
            path.read_text().splitlines()
            for path in (ROOT / "constraints.txt", PINS / "engine-dependencies.txt")
        )
    ]
    shared = pins[0].keys() & pins[1].keys()
    assert shared
    assert {name: pins[0][name] for name in shared} == {name: pins[1][name] for name in shared}
