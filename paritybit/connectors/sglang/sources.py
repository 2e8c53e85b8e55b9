"""The line of the engine's source that fills a static input: `sglang/srt/...py:373`."""

import ast
import functools
import sys
from pathlib import Path

NOT_AT_REPLAY = ("__init__", "create", "capture", "init_cuda_graph_state", "_allocate")
"""Functions, by the start of their names, that run at capture only."""


REGISTRY = "sglang.srt.model_executor.cuda_graph_buffer_registry"
"""The module in which later releases declare what fills the inputs of a graph."""


def source_of(name: str, *owners: type) -> str | None:
    """Return where the modules of some classes, or the registry, fill the buffer `name`."""
    modules = [cls.__module__ for owner in owners for cls in owner.__mro__[:-1]]
    for module in dict.fromkeys([*modules, REGISTRY]):
        path = getattr(sys.modules.get(module), "__file__", None)
        line = fills(path).get(name) if path else None
        if line is not None:
            return f"{shown(str(path))}:{line}"
    return None


def shown(path: str) -> str:
    """Return a path from the engine's top-level package on."""
    parts = Path(path).parts
    return "/".join(parts[parts.index("sglang") :]) if "sglang" in parts else Path(path).name


@functools.cache
def fills(path: str) -> dict[str, int]:
    """Return, by the name of a buffer, the first line of a file that copies into it."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, int] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and not function.name.startswith(NOT_AT_REPLAY):
            for node in ast.walk(function):
                for view in views(node):
                    name = buffer(view)
                    if name:
                        found.setdefault(name, view.lineno)
    return found


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
    """Return the buffer's name in an expression such as `self.name[:n]` or in a literal."""
    while isinstance(node, ast.Subscript):
        node = node.value
    match node:
        case ast.Attribute(attr=name):
            return name
        case ast.Constant(value=str(name)):
            return name
    return None
