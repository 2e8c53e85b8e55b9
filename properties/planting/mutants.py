"""Change our own code by rule, one node of a syntax tree at a time, and see whether tests fail.

`python -m properties.planting.mutants PATH... -- TESTS...` draws mutants of the files below the
paths. It runs pytest on TESTS with each, in a process that imports the mutant in place of the
module. Without TESTS, the clean trials of the laboratory judge. Exits with 1 if a mutant survives.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from types import ModuleType

import pytest

from properties.support.places import ROOT, say

CLEAN_TRIALS = ["properties/verdicts/test_engine.py", "-m", "clean"]

MOST_SECONDS = 900
"""Seconds after which a mutant is taken to hang."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mult: ast.Add,
}


@dataclass(frozen=True)
class Mutant:
    """One changed node. `number` counts the mutants of the file in the order of its functions."""

    file: str
    number: int
    line: int
    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.before} -> {self.after}"


def mutants_of(file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for number, (function, node, changed) in enumerate(_changes(tree)):
        line = getattr(node, "lineno", 0)
        yield Mutant(file, number, line, function.name, _shown(node), _shown(changed))


def mutated(file: str, number: int) -> ast.Module:
    """Return the syntax tree of a file with one of its mutants."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    function, node, changed = next(islice(_changes(tree), number, None))
    ast.copy_location(changed, node)
    for parent in ast.walk(function):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, changed)
            elif isinstance(value, list):
                setattr(parent, name, [changed if one is node else one for one in value])
    return ast.fix_missing_locations(tree)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, ast.AST, ast.AST]]:
    """Yield each function, a node in it, and what the node becomes."""
    for function in _functions(tree):
        skipped = _skipped(function)
        for node in list(ast.walk(function)):
            if id(node) not in skipped:
                yield from ((function, node, changed) for changed in _changed(node))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the outermost functions and methods of a module."""
    for node in tree.body:
        for one in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(one, ast.FunctionDef):
                yield one


def _skipped(function: ast.FunctionDef) -> set[int]:
    """Return the ids of nodes that change no behaviour: types, texts and errors."""
    roots: list[ast.AST] = [*function.decorator_list, function.args]
    if function.returns is not None:
        roots.append(function.returns)
    for node in ast.walk(function):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            roots.append(node)
        elif isinstance(node, ast.AnnAssign):
            roots.append(node.annotation)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            roots.append(node)
    return {id(inner) for root in roots for inner in ast.walk(root)}


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node becomes in each of its mutants."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            changed.ops = [COMPARISONS[type(operator)]()]
            yield changed
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.BinOp(op=operator) if type(operator) in SIGNS:
            changed.op = SIGNS[type(operator)]()
            yield changed
        case ast.BoolOp(op=operator):
            changed.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield changed
        case ast.UnaryOp(op=ast.Not()):
            yield changed.operand
        case ast.IfExp():
            changed.body, changed.orelse = changed.orelse, changed.body
            yield changed
        case ast.If():
            changed.test = ast.UnaryOp(ast.Not(), changed.test)
            yield changed
        case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second):
            changed.args = [second, first, *rest]
            yield changed
        case ast.Expr() | ast.AugAssign():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _shown(node: ast.AST) -> str:
    """Return a node's code on one line, cut short."""
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


class MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a mutated syntax tree."""

    def __init__(self, file: str, number: int) -> None:
        self.path, self.tree = ROOT / file, mutated(file, number)
        parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
        self.name = ".".join(parts if parts[0] == "paritybit" else ["paritybit", *parts])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the mutated module, None for other modules."""
        if fullname != self.name:
            return None
        inside = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=inside
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the mutated module."""
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


def judged(mutant: Mutant, tests: Sequence[str]) -> str:
    """Run pytest on a mutant in a process, and return how that ended."""
    command = [sys.executable, "-m", "properties.planting.mutants", mutant.file, "--number"]
    try:
        done = subprocess.run(
            [*command, str(mutant.number), "--", *tests],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    return {0: "survives", int(pytest.ExitCode.TESTS_FAILED): "fails tests"}.get(
        done.returncode, "raises"
    )


def drawn(paths: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of the files below paths, all if it is 0."""
    found = [ROOT / path for path in paths]
    files = [file for path in found for file in ([path] if path.is_file() else path.rglob("*.py"))]
    names = sorted(str(file.relative_to(ROOT)) for file in files)
    mutants = [mutant for name in names for mutant in mutants_of(name)]
    if 0 < count < len(mutants):
        mutants = random.Random(seed).sample(mutants, count)
    return sorted(mutants, key=lambda one: (one.file, one.number))


def main() -> int:
    """Judge the mutants asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description="Mutate our code; see whether tests fail.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="Files or folders of the product")
    parser.add_argument("--count", type=int, default=60, help="Mutants to draw (60); 0 takes all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="Mutants at a time (1)")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    asked, tests = parser.parse_args(words[:end]), words[end + 1 :] or CLEAN_TRIALS
    if asked.number is not None:
        sys.meta_path.insert(0, MutatedModule(asked.paths[0], asked.number))
        return pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests])
    mutants = drawn(asked.paths, asked.count, asked.seed)
    with ThreadPoolExecutor(asked.jobs) as pool:
        ends = list(pool.map(lambda one: judged(one, tests), mutants))
    for mutant, ended in zip(mutants, ends, strict=True):
        say(f"{ended}: {mutant}")
    counts = Counter(ends)
    say(", ".join(f"{counts[end]} {end}" for end in sorted(counts)))
    return 1 if counts["survives"] else 0


if __name__ == "__main__":
    sys.exit(main())
