"""Playing clean trials on one mutant, in a process of its own: `python -m … FILE NUMBER`.

The mutated module is put in the place of the right one as it is imported. Prints one JSON
object: how it ended, and what was seen.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from types import ModuleType

from properties.code_mutants.mutation import ROOT, mutated

EXAMPLES = 12
"""Schedules that are drawn for each trial, until one shows the mistake."""


class MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module of this tree from a syntax tree instead of its file."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file = file
        self.tree = tree
        parts = file.removesuffix(".py").split("/")
        self.name = ".".join(["paritybit", *(parts[:-1] if parts[-1] == "__init__" else parts)])
        self.loaded = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the mutated module's spec, None for any other."""
        if fullname != self.name:
            return None
        is_package = self.file.endswith("__init__.py")
        return importlib.util.spec_from_file_location(
            fullname,
            ROOT / self.file,
            loader=self,
            submodule_search_locations=[str((ROOT / self.file).parent)] if is_package else None,
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the mutated module."""
        self.loaded = True
        exec(compile(self.tree, str(ROOT / self.file), "exec"), module.__dict__)


def play() -> dict[str, str]:
    """Play clean trials, of every engine and scheme, until something is violated."""
    # Imported late, so that the mutant is what they import.
    from paritybit.harness.campaigns.hunt import hunt, without_error  # noqa: PLC0415
    from paritybit.harness.checks.play import DeviceLostError, Lockstep  # noqa: PLC0415
    from paritybit.harness.checks.table import PROPERTIES  # noqa: PLC0415
    from paritybit.harness.lockstep.config import TrialConfig  # noqa: PLC0415
    from paritybit.subjects.runners import ONE_PER_ENGINE  # noqa: PLC0415
    from paritybit.subjects.toggles import LocationScheme  # noqa: PLC0415

    trials = [
        TrialConfig(runner, preset, scheme=scheme, page_size=1 + 3 * (place % 2))
        for scheme in LocationScheme
        for place, (runner, preset) in enumerate(
            zip(ONE_PER_ENGINE, ("gpt_oss", "mimo", "gemma3"), strict=True)
        )
    ]
    others = (
        TrialConfig(overlap=True),
        TrialConfig("eagle_draft", topk=1),
    )
    for trial in (*trials, *others):
        lockstep = Lockstep(trial, PROPERTIES)
        if lockstep.capture_warnings:
            return {"end": "seen", "by": "a warning at capture"}
        try:
            found = without_error(hunt(lockstep, None, 0, EXAMPLES, shrinks=False))
        except DeviceLostError:
            return {"end": "seen", "by": "device lost"}
        if found.schedule is not None:
            overlap = ", overlapping" * trial.overlap
            where = f"{trial.runner}, {trial.scheme}{overlap}, schedule {found.schedules}"
            return {"end": "seen", "by": ", ".join(sorted(found.violated)), "where": where}
    return {"end": "survived", "by": ""}


def main() -> None:
    """Play the mutant that the command line names and print how it ended."""
    file, number = sys.argv[1], int(sys.argv[2])
    finder = MutatedModule(file, mutated(file, number))
    sys.meta_path.insert(0, finder)
    try:
        result = play()
    except Exception as error:  # The build, or a check of ours, does not stand it: seen, apart.
        result = {"end": "raised", "by": f"{type(error).__name__}: {error}".splitlines()[0]}
    if not finder.loaded:
        result = {"end": "not loaded", "by": ""}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
