"""All names of this build, each with a description."""

import ast
import inspect

from paritybit.harness.checks.expectations import detected_by, unaffected_reason
from paritybit.harness.checks.table import PROPERTIES, STATEMENTS
from paritybit.reference.config import PRESETS
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS

Names = dict[str, dict[str, str]]
"""Names and their descriptions, by kind."""

OVERLAPPING = "tested with overlapping steps: two streams on CUDA, emulated on a CPU"


def listed() -> Names:
    """Return all names of this build with their descriptions, by kind."""
    return {
        "bugs": {
            name: bug.mechanism + (f" ({OVERLAPPING})" if bug.overlap else "")
            for name, bug in BUGS.items()
        },
        "runners": {name: docstring(runner).splitlines()[0] for name, runner in RUNNERS.items()},
        "bugs on runners": {
            f"{name}@{runner}": described(unaffected_reason(bug, runner), detected_by(bug, runner))
            for name, bug in BUGS.items()
            for runner in RUNNERS
        },
        "presets": {name: preset.source for name, preset in PRESETS.items()},
        "properties": {name: STATEMENTS[name] for name in PROPERTIES},
    }


def docstring(kind: type) -> str:
    """Return the docstring of a class from its source, because the interpreter may drop it."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return ast.get_docstring(definition) or ""


def described(unaffected: str | None, detected_by: str | None) -> str:
    """Describe the effect of a bug on a runner."""
    return f"detected by {detected_by}" if unaffected is None else f"cannot affect it: {unaffected}"
