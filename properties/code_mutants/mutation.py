"""Mutants of a module, made by rule from its syntax tree: one node is changed in each."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[2]

MUTATED = ("subjects",)
"""The folders whose modules are mutated."""

LEFT_OUT = (
    *("subjects/bugs", "subjects/mutants"),
    *("subjects/cuda_streams.py", "subjects/graphs/cuda.py"),
    *("subjects/listing/device.py", "subjects/listing/drafts.py", "subjects/listing/paths.py"),
)
"""What no clean trial of our engine runs on a CPU, by how the names of its files begin."""

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
class CodeMutant:
    """One mistake: in which function of which file, of which kind, and what it makes of what.

    `number` counts the mutants of the file in the order of its lines.
    """

    file: str
    number: int
    line: int
    function: str
    kind: str
    before: str
    after: str

    @property
    def key(self) -> str:
        """What the mutant is called whatever its line: see `survivors.json`."""
        return f"{self.file}::{self.function}: {self.kind}: {self.before} -> {self.after}"


def mutated_files() -> list[str]:
    """Return the files that are mutated, relative to the root, in order."""
    found = [path for top in MUTATED for path in (ROOT / top).rglob("*.py")]
    names = sorted(str(path.relative_to(ROOT)) for path in found)
    return [name for name in names if not name.startswith(LEFT_OUT)]


def mutants_of(file: str) -> Iterator[CodeMutant]:
    """Yield every mutant of a file, in the order of its functions."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for number, (place, _, node, kind, changed) in enumerate(_mistakes(tree)):
        line = getattr(node, "lineno", 0)
        yield CodeMutant(file, number, line, place, kind, _shown(node), _shown(changed))


def mutated(file: str, number: int) -> ast.Module:
    """Return the syntax tree of a file with the mistake of one of its mutants."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    _, function, node, _, changed = next(islice(_mistakes(tree), number, None))
    ast.copy_location(changed, node)
    for parent in ast.walk(function):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, changed)
            elif isinstance(value, list):
                setattr(parent, name, [changed if one is node else one for one in value])
    return ast.fix_missing_locations(tree)


def _mistakes(
    tree: ast.Module,
) -> Iterator[tuple[str, ast.FunctionDef, ast.AST, str, ast.AST]]:
    """Yield every mistake: the function's name and tree, the node, the kind, and the new node."""
    for place, function in _functions(tree):
        skipped = _skipped(function)
        for node in list(ast.walk(function)):
            if id(node) not in skipped:
                for kind, changed in _changes(node):
                    yield place, function, node, kind, changed


def _functions(tree: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    """Return the outermost functions and methods of a module by their qualified names."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.append((node.name, node))
        elif isinstance(node, ast.ClassDef):
            found += [
                (f"{node.name}.{inner.name}", inner)
                for inner in node.body
                if isinstance(inner, ast.FunctionDef)
            ]
    return found


def _skipped(function: ast.FunctionDef) -> set[int]:
    """Return the ids of nodes that change no behaviour that a step shows: texts, types, errors."""
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


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the kinds of mistakes that a node allows, and the node with each."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            changed.ops = [COMPARISONS[type(operator)]()]
            yield "comparison", changed
        case ast.Constant(value=bool(value)):
            yield "flag turned", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "off by one", ast.Constant(value + 1)
        case ast.BinOp(op=operator) if type(operator) in SIGNS:
            changed.op = SIGNS[type(operator)]()
            yield "arithmetic", changed
        case ast.BoolOp(op=operator):
            changed.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "condition", changed
        case ast.UnaryOp(op=ast.Not()):
            yield "condition", changed.operand
        case ast.IfExp():
            changed.body, changed.orelse = changed.orelse, changed.body
            yield "condition", changed
        case ast.If():
            changed.test = ast.UnaryOp(ast.Not(), changed.test)
            yield "condition", changed
        case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second):
            changed.args = [second, first, *rest]
            yield "swapped argument", changed
        case ast.Expr() | ast.AugAssign():
            yield "dropped statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped statement", ast.Pass()


def _shown(node: ast.AST) -> str:
    """Return a node's code on one line, cut short."""
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
