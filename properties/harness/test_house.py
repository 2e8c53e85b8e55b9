"""The structure: which package may import which, and which names belong to which package.

Read off the sources, without importing them.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from paritybit.harness.checks.table import PROPERTIES
from paritybit.subjects.bugs.catalogue import BUGS

from paritybit.engines.fetch import PINS

ROOT = Path(__file__).parents[2]

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
    "paritybit.export",
    "paritybit.testing",
    "paritybit.harness.cli",
)
"""The packages: any may import from those before it."""

DATA_FOR_REPORTS = (
    "paritybit.harness.explain.facts",
    "paritybit.harness.records.schema",
    "paritybit.launch.schema",
    "paritybit.launch.trend",
    "paritybit.launch.words",
)
"""All that `reports` knows of a run: data, and no torch."""

BELOW_THE_HARNESS = ("paritybit.reference", "paritybit.subjects")

MOST_FUNCTION_LINES = 60


@cache
def sources() -> Mapping[str, Path]:
    """Return every module of the build by name, tests apart."""
    found = {}
    for top in ("paritybit", "reference", "subjects", "harness", "reports"):
        for path in sorted((ROOT / top).rglob("*.py")):
            inside = path.relative_to(ROOT / "paritybit" if top == "paritybit" else ROOT)
            parts = ("paritybit", *inside.with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file's syntax tree, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def package_of(module: str) -> str:
    """Return the package of ORDER or the reports that a module belongs to."""
    if module == "paritybit.__main__":
        return "paritybit.harness.cli"
    if module in {"paritybit", "paritybit.harness"}:
        return "paritybit.places"
    parts = module.split(".")
    return ".".join(parts[:3] if parts[1] == "harness" else parts[:2])


def imported_by(statements: Iterable[ast.AST], known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of ours that import statements name."""
    for node in statements:
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            named = [name if name in known else node.module for name in inside]
        else:
            continue
        yield from (name for name in named if name in known)


def imports(module: str) -> set[str]:
    """Return every module of ours that a module imports, at the top or inside a function."""
    return set(imported_by(nodes(sources()[module]), sources()))


def top_imports(path: Path, known: Mapping[str, Path]) -> set[str]:
    """Return every module of ours that is imported while a file is imported itself."""
    return set(imported_by(outside_functions(nodes(path)[0]), known))


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one that do not belong to a function."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


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
def test_a_package_imports_from_those_before_it_alone(package: str) -> None:
    """And `reports`, which only the command line imports, from the data of a run."""
    mine = [module for module in sources() if package_of(module) == package]
    assert mine
    wrong = {
        f"{module} imports {other}"
        for module in mine
        for other in imports(module)
        if not allowed(module, other)
    }
    assert wrong == set()


def test_the_sanitizer_imports_torch_and_the_standard_library_alone() -> None:
    """It runs among the packages of an engine. Triton is imported where it is there."""
    allowed_ = {"torch", "triton", *sys.stdlib_module_names}
    for module in [module for module in sources() if package_of(module) == "paritybit.watch"]:
        for node in nodes(sources()[module]):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                inside = name.startswith("paritybit.watch")
                assert inside or name.split(".")[0] in allowed_, f"{module} imports {name}"


def test_every_module_belongs_to_a_package() -> None:
    assert {package_of(module) for module in sources()} == {*ORDER, "paritybit.reports"}


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """Return modules that import one another in a circle, the first again at the end, if any do."""
    done: set[str] = set()

    def walk(path: list[str]) -> list[str]:
        for other in sorted(edges[path[-1]]):
            if other in path:
                return [*path[path.index(other) :], other]
            if other not in done and (found := walk([*path, other])):
                return found
        done.add(path[-1])
        return []

    return next((found for module in sorted(edges) if (found := walk([module]))), [])


def test_no_modules_import_one_another_in_a_circle() -> None:
    edges = {module: top_imports(path, sources()) - {module} for module, path in sources().items()}
    assert circle(edges) == []


def all_sources() -> list[Path]:
    """Return every source file, tests and conftest among them."""
    tests = [*(ROOT / "properties").rglob("*.py"), ROOT / "conftest.py"]
    return [*sources().values(), *sorted(tests)]


def hidden_imports(source: Iterable[ast.AST]) -> Iterator[str]:
    """Yield what is imported for type checkers alone."""
    for node in source:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported_by(ast.walk(node), sources())


HIDDEN = {"paritybit/drive/engines.py": "a table that command lines read without what drives"}
"""Files that hide imports of ours from the interpreter, and why."""


def test_no_import_of_ours_is_hidden_from_the_interpreter() -> None:
    """What only a type checker sees may close a circle all the same."""
    found = {
        str(path.relative_to(ROOT))
        for path in all_sources()
        if "TYPE_CHECKING" in path.read_text() and set(hidden_imports(nodes(path)))
    }
    assert found == HIDDEN.keys()
    source = "if typing.TYPE_CHECKING:\n    from paritybit.harness.lockstep.pair import Pair\n"
    assert list(hidden_imports(ast.walk(ast.parse(source)))) == ["paritybit.harness.lockstep.pair"]


def test_no_function_is_longer_than_a_screen() -> None:
    """Tests too."""
    long = {
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in all_sources()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MOST_FUNCTION_LINES
    }
    assert long == set()


def names_in(path: Path, names: Mapping[str, object]) -> set[str]:
    """Return which names a file has: as a string of their own, or, if of several words, anywhere.

    A name of one word may be a word of a sentence.
    """
    strings = {
        node.value
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    text = path.read_text()
    return {
        name
        for name in names
        if name in strings or ("_" in name and re.search(rf"\b{re.escape(name)}\b", text))
    }


def modules_that_name(names: Mapping[str, object], packages: tuple[str, ...]) -> set[str]:
    """Return the modules of some packages that name any of these, catalogue of bugs apart."""
    return {
        f"{module} names {name}"
        for module, path in sources().items()
        if package_of(module) in packages and not module.startswith("paritybit.subjects.bugs")
        for name in names_in(path, names)
    }


def test_nothing_below_the_harness_names_a_property() -> None:
    assert modules_that_name(PROPERTIES, BELOW_THE_HARNESS) == set()


def test_nothing_below_the_harness_names_a_bug_but_the_catalogue() -> None:
    assert modules_that_name(BUGS, BELOW_THE_HARNESS) == set()


def test_the_build_imports_no_test_and_no_conftest() -> None:
    for module, path in sources().items():
        named = {
            name
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom | ast.Import)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
        }
        assert not {name for name in named if name.split(".")[0] in {"properties", "conftest"}}, (
            module
        )


def test_what_is_pinned_twice_is_pinned_alike() -> None:
    """An engine on trial finds the main environment's packages before its own."""
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
