"""Mutants differ from the code and from each other, and tests see one."""

import ast

from properties.planting.mutants import drawn, judged, mutants_of, mutated
from properties.support.places import ROOT

FILE = "subjects/runners/decode.py"


def test_each_mutant_is_another_module_that_compiles() -> None:
    seen = {ast.dump(ast.parse((ROOT / FILE).read_text(encoding="utf-8")))}
    for mutant in mutants_of(FILE):
        tree = mutated(FILE, mutant.number)
        assert ast.dump(tree) not in seen, str(mutant)
        seen.add(ast.dump(tree))
        compile(tree, FILE, "exec")
    assert len(seen) > 5


def test_a_draw_depends_on_its_seed() -> None:
    first, again, other = (drawn(["subjects/runners"], 9, seed) for seed in (3, 3, 4))
    assert first == again != other
    assert drawn([FILE], 0, 0) == list(mutants_of(FILE))


def test_a_mutant_fails_the_tests_of_its_module() -> None:
    mutants = mutants_of("reference/allocator.py")
    mutant = next(one for one in mutants if one.before == "self.free_rows.append(allocation.row)")
    tests = ["properties/reference/test_allocator.py", "-k", "issued_again"]
    assert judged(mutant, tests) == "fails tests"
