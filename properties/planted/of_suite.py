"""Faults planted in how pytest runs the suite."""

from properties.planted.fault import Fault

OF_SUITE: tuple[Fault, ...] = (
    Fault(
        name="gpus-beyond-a-wrong-one",
        file="harness/machine/gpus.py",
        old="return entries[: valid.index(False)] if False in valid else entries",
        new="return [entry for entry, good in zip(entries, valid, strict=True) if good]",
        tests=("properties/harness/machine/test_gpus.py",),
        why="GPUs named after one that is not there are used.",
    ),
    Fault(
        name="workers-share-the-first-gpu",
        file="conftest.py",
        old="gpus[number % len(gpus)]",
        new="gpus[0]",
        tests=(
            "properties/harness/cli/test_pytest_options.py",
            "-k",
            "pinned_to_its_gpu",
        ),
        why="All workers are pinned to one GPU.",
    ),
)
