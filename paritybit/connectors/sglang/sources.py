"""Finds lines of the engine's source, such as `sglang/srt/...py:373`, that fill static inputs."""

import ast
import functools
import sys
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path

from paritybit.connectors.hooking import callers

NOT_AT_REPLAY = ("__init__", "create", "capture", "init_cuda_graph_state", "allocate")
"""Parts of the names of functions that run only at capture."""


REGISTRY = "sglang.srt.model_executor.cuda_graph_buffer_registry"
"""The module in which later releases declare how the inputs of a graph are filled."""


def source_of(name: str, *owners: type) -> str | None:
    """Return the line that fills the buffer `name`, in the modules of some classes or REGISTRY."""
    classes = [(cls.__module__, cls.__name__) for owner in owners for cls in owner.__mro__[:-1]]
    for module, cls in dict.fromkeys([*classes, (REGISTRY, None)]):
        path = getattr(sys.modules.get(module), "__file__", None)
        line = fills(path, cls).get(name) if path else None
        if line is not None:
            return f"{shown(str(path))}:{line}"
    return None


@functools.cache
def shown(path: str) -> str:
    """Return a path relative to the parent of the engine's package."""
    parts = Path(path).parts
    return "/".join(parts[parts.index("sglang") :]) if "sglang" in parts else Path(path).name


def called_at(files: Collection[str]) -> str | None:
    """Return the innermost calling line of the engine outside of some files, or None."""
    for frame in callers():
        path = frame.f_code.co_filename
        if path not in files and "/sglang/srt/" in path:
            return f"{shown(path)}:{frame.f_lineno}"
    return None


def called_by(function: str) -> bool:
    """Return whether a function of this name is among the callers."""
    return any(frame.f_code.co_name == function for frame in callers())


def lines_of(error: BaseException) -> list[str]:
    """Return the lines in the traceback of an error. The last one raised it."""
    frames = traceback.walk_tb(error.__traceback__)
    return [f"{shown(frame.f_code.co_filename)}:{line}" for frame, line in frames]


def raised_in(error: BaseException, function: str) -> bool:
    """Return whether a function of this name is in the traceback of an error."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name == function for frame, _ in frames)


@functools.cache
def fills(path: str, cls: str | None = None) -> dict[str, int]:
    """Return the first line of a file or class that copies into each buffer, by name.

    For a buffer without such a line, it is the first line that passes it on, such as to a kernel.
    """
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    within = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls]
    copied: dict[str, int] = {}
    passed: dict[str, int] = {}
    for function in ast.walk(within[0] if within else tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        if not any(part in function.name for part in NOT_AT_REPLAY):
            for node in ast.walk(function):
                for view in views(node):
                    copied.setdefault(buffer(view) or "", view.lineno)
            for name, line in arguments(function):
                passed.setdefault(name, line)
    return {**passed, **copied}


def arguments(function: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """Yield the buffers that a function passes on, directly or by a local name, and the lines."""
    local: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = buffer(node.value)
            if name:
                local.setdefault(node.targets[0].id, name)
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
            name = local.get(value.id) if isinstance(value, ast.Name) else buffer(value)
            if name and not isinstance(value, ast.Constant):
                yield name, value.lineno


def views(node: ast.AST) -> list[ast.expr]:
    """Return the views of buffers that a statement or call copies into."""
    match node:
        case ast.Call(func=ast.Attribute(value=view, attr="copy_")):
            return [view]
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append")) if "dst" in name:
            return node.args
        case ast.Call(func=ast.Name(id="GraphSlot"), args=[first, *_]):
            return [first]
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=elements)) if (
            "dst" in name
        ):
            return elements
        case ast.Assign(targets=targets):
            return [target for target in targets if isinstance(target, ast.Subscript)]
    return []


def buffer(node: ast.expr) -> str | None:
    """Return the name of the buffer in an expression such as `self.name[:n]`, or in a literal."""
    while isinstance(node, ast.Subscript):
        node = node.value
    match node:
        case ast.Attribute(attr=name):
            return name
        case ast.Constant(value=str(name)):
            return name
    return None
