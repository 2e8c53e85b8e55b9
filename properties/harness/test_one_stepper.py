"""`Pair.step` is the one place where both worlds plan a step, run it and commit it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPPER = "harness/lockstep/pair.py"

ELSEWHERE = {
    ("harness/checks/play.py", "self.pair.plan"): "a build that cannot be captured runs nothing",
    ("harness/lockstep/overlapped.py", "super().plan"): "the stepper's own call, or what it asks",
    ("harness/lockstep/overlapped.py", "super().commit"): "the stepper's own call",
    ("harness/checks/step_properties/batch_invariance.py", "pair.decoder.forward"): "its extra run",
}
"""Calls of parts of a step outside the stepper, and why they are none of its loop."""


def parts_called(source: str) -> Iterator[str]:
    """Yield every call that plans or commits a step, or runs it on the reference."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, on = node.func.attr, ast.unparse(node.func.value)
            part_of_a_step = called in {"plan", "commit", "run_subject"}
            if part_of_a_step or (called == "forward" and on.endswith(("decoder", "eager"))):
                yield f"{on}.{called}"


def test_no_other_module_of_the_harness_plans_runs_or_commits_a_step() -> None:
    found = {
        (str(path.relative_to(ROOT)), call)
        for path in sorted((ROOT / "harness").rglob("*.py"))
        if str(path.relative_to(ROOT)) != STEPPER
        for call in parts_called(path.read_text())
    }
    assert found == set(ELSEWHERE)
