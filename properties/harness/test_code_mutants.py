"""Mutants of the code are made by rule, each differs, and the harness sees what one changes."""

import ast
import json
from functools import cache

from properties.code_mutants.mutation import (
    ROOT,
    CodeMutant,
    mutants_of,
    mutated,
    mutated_files,
)
from properties.code_mutants.run import ended, known_survivors, sample

FILE = "subjects/runners/base.py"
SMALL = "subjects/runners/decode.py"


@cache
def everything() -> list[CodeMutant]:
    """Return the mutants of all files."""
    return [mutant for file in mutated_files() for mutant in mutants_of(file)]


def test_each_mutant_of_a_file_is_another_module_that_compiles() -> None:
    seen = {ast.dump(ast.parse((ROOT / SMALL).read_text(encoding="utf-8")))}
    for mutant in mutants_of(SMALL):
        tree = mutated(SMALL, mutant.number)
        dumped = ast.dump(tree)
        assert dumped not in seen, mutant.key
        seen.add(dumped)
        compile(tree, SMALL, "exec")


def test_every_kind_of_mistake_is_made_somewhere() -> None:
    kinds = {mutant.kind for mutant in everything()}
    assert kinds >= {"comparison", "off by one", "dropped statement", "swapped argument"}


def test_a_sample_follows_from_its_seed() -> None:
    first, again, other = (sample(9, seed, SMALL) for seed in (3, 3, 4))
    assert first == again != other
    assert sample(0, 0, SMALL) == list(mutants_of(SMALL))


def test_a_mutant_is_played_in_a_process_of_its_own_and_seen() -> None:
    """A runner that takes every batch for a padded one, where the right one looks at its size."""
    mutant = next(
        found
        for found in mutants_of(FILE)
        if found.before == "self.size(batch) != bucket" and found.kind == "comparison"
    )
    result = ended(mutant)
    assert result["end"] == "seen", json.dumps(result)


def test_every_survivor_that_is_explained_is_a_mutant_of_this_tree() -> None:
    keys = {mutant.key for mutant in everything()}
    assert known_survivors().keys() <= keys
    assert all(len(reason) > 20 for reason in known_survivors().values())
