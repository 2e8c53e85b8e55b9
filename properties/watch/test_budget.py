"""The budget checks as many forwards as its share of the time allows."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from paritybit.watch.budget import IDLE, TOGETHER, Budget, drawn

FORWARD, SKIPPED, CHECKED, FIRST = 0.01, 2e-5, 0.02, 2.0
"""Seconds of a forward, and of the sanitizer in it."""


def ask(budget: Budget, number: int, kind: str = "", model: str = "", **more: Any) -> bool:
    """Ask a budget about the forward of a model with a number."""
    return budget.due(kind, model, drawn("key", model, number), **more)


def asked(
    forwards: int, due: Callable[[Budget, int], bool], *, checked: float = CHECKED
) -> tuple[Budget, list[int]]:
    """Serve forwards with a share of 3 %, in which a check takes `checked` seconds.

    `due` asks the budget about the forward with a number. Returns the budget, and the numbers of
    the checked forwards.
    """
    now, spent, numbers = 0.0, 0.0, list[int]()
    budget = Budget(0.03, lambda: now, lambda: spent)
    for number in range(forwards):
        cost = checked * due(budget, number)
        numbers += [number] * bool(cost)
        now, spent = now + FORWARD + cost, spent + cost
    return budget, numbers


def served(share: float, forwards: int, *, idle: float = 0.0) -> tuple[Budget, list[int]]:
    """Serve forwards, every thousandth of which comes after `idle` seconds.

    Returns the budget, and the numbers of the checked forwards.
    """
    now, spent, checked, random = 0.0, 0.0, list[int](), Random(1)
    budget = Budget(share, lambda: now, lambda: spent)
    for number in range(forwards):
        now += idle if number % 1000 == 999 else 0.0
        cost = SKIPPED
        if ask(budget, number):
            cost = CHECKED * random.uniform(0.5, 2.0) if checked else FIRST
            checked.append(number)
        now, spent = now + FORWARD + cost, spent + cost
    return budget, checked


@pytest.mark.parametrize("share", [0.01, 0.03, 0.2])
@pytest.mark.parametrize("idle", [0.0, 60.0])
def test_the_share_is_used_and_not_exceeded(share: float, idle: float) -> None:
    budget, checked = served(share, 20_000, idle=idle)
    assert 0.8 * share < (budget.taken - FIRST) / budget.elapsed < 1.05 * share
    assert checked[0] == 0
    gaps = {after - before for before, after in pairwise(checked)}
    assert len(gaps) > 5  # A constant gap could miss a kind of forward.


def test_idle_time_is_no_time_of_the_engine() -> None:
    quiet, _ = served(0.03, 5_000)
    paused, _ = served(0.03, 5_000, idle=600.0)
    assert paused.elapsed - quiet.elapsed < 5 * 1.1 * IDLE


def test_what_the_sanitizer_spends_while_the_engine_is_idle_does_not_count() -> None:
    now = spent = 0.0
    budget = Budget(0.03, lambda: now, lambda: spent)
    for number in range(2_000):
        due = ask(budget, number)
        now, spent = now + FORWARD + CHECKED * due, spent + CHECKED * due
        if number % 10 == 0:
            for _ in range(100):
                budget.rest()
                now, spent = now + 0.1, spent + 0.05
    assert budget.elapsed == pytest.approx(2_000 * FORWARD, rel=0.1)
    assert budget.cost == pytest.approx(CHECKED)
    assert budget.taken - CHECKED < 0.035 * budget.elapsed


def test_half_of_the_share_is_for_checks() -> None:
    share = 0.2 * SKIPPED / FORWARD
    budget, checked = served(share, 500_000)
    checks = budget.taken - FIRST - SKIPPED * (500_000 - len(checked))
    assert 0.3 * share < checks / budget.elapsed < share


def test_a_forced_check_is_paid_for() -> None:
    times = iter(range(100))
    budget = Budget(0.1, lambda: next(times) / 10, lambda: float(budget.checked))
    assert [ask(budget, number, forced=True) for number in range(3)] == [True] * 3
    assert not any([ask(budget, number) for number in range(3, 53)][TOGETHER - 1 :])


def test_the_kind_that_was_checked_least_is_preferred() -> None:
    """Without it, one in twenty checked forwards would be of the rare kind."""
    budget, _ = asked(20_000, lambda one, n: ask(one, n, "extend" if n % 20 == 0 else "decode"))
    assert 0.7 < budget.kinds["extend"] / budget.kinds["decode"] <= 1.1


def test_the_first_of_each_kind_is_checked_on_credit() -> None:
    dear = 100 * CHECKED
    budget, _ = asked(
        50, lambda one, n: ask(one, n, "decode" if n > 10 else "extend"), checked=dear
    )
    assert {*budget.kinds} == {"extend", "decode"}


def test_forwards_of_a_model_are_checked_in_a_row() -> None:
    def due(budget: Budget, number: int) -> bool:
        return ask(budget, number // 2, model="draft " if number % 2 else "")

    _, checked = asked(20_000, due)
    for model in (0, 1):
        later = [number for number in checked if number > 10 and number % 2 == model]
        assert len(later) > 60
        gaps = [after - before for before, after in pairwise(later)]
        assert set(gaps[::TOGETHER]) == set(gaps[1::TOGETHER]) == {2}
        assert min(gaps[2::TOGETHER]) > 10


def test_what_may_be_wrong_is_checked_again_at_once() -> None:
    """On credit, and forwards of the same kind."""
    budget, dues = asked(600, lambda one, n: ask(one, n, f"{n % 4}", again=n > 500))
    later = [number for number in dues if number > 500]
    alike = [number for number in later if f"{number % 4}" == budget.kind]
    assert alike[2] < 530
    assert len(later) <= len(alike) + TOGETHER


def test_other_kinds_count_while_one_may_be_wrong_that_never_comes_again() -> None:
    budget, checked = asked(20_000, lambda one, n: ask(one, n, f"{n > 0}", again=n > 0))
    gaps = [after - before for before, after in pairwise(checked)]
    assert gaps.count(1) > len(gaps) / 2
    assert budget.kinds["True"] > 50


def served_together(costs: Sequence[float], share: float, forwards: int) -> list[list[int]]:
    """Serve forwards to ranks that wait for one another, with a check of these costs.

    Returns the numbers of the forwards that each checks.
    """
    now, random = 0.0, Random(1)
    spent, checked = [0.0] * len(costs), [list[int]() for _ in costs]
    budgets = [
        Budget(share, lambda: now, partial(lambda n: spent[n], n)) for n in range(len(costs))
    ]
    for number in range(forwards):
        kind = random.choice("ab") if random.random() < 0.05 else f"decode {number // 40 % 8}"
        took = [SKIPPED] * len(costs)
        for rank, budget in enumerate(budgets):
            if ask(budget, number, kind):
                noise = random.uniform(0.8, 1.2)
                took[rank] = costs[rank] * noise if checked[rank] else FIRST
                checked[rank].append(number)
        spent = [before + more for before, more in zip(spent, took, strict=True)]
        now += FORWARD + max(took)
    for budget in budgets:
        assert 0.8 * share < (budget.taken - FIRST) / budget.elapsed < 1.05 * share
    return checked


@pytest.mark.parametrize("share", [0.03, 0.2])
@pytest.mark.parametrize("dearer", [1.0, 2.5])
def test_ranks_choose_the_same_forwards(share: float, dearer: float) -> None:
    """Without talking. The rank whose checks take longer chooses some of those of the other one."""
    cheap, dear = served_together([CHECKED, dearer * CHECKED], share, 20_000)
    assert len(dear) == pytest.approx(len(cheap) / dearer, rel=0.15)
    assert len({*cheap} & {*dear}) > 0.75 * len(dear)


def test_a_smaller_share_has_forwards_of_a_larger_one() -> None:
    draws = [drawn("key", "", number) for number in range(10_000)]
    for share in (0.5, 0.01, 0.001):
        chosen = [number for number, one in enumerate(draws) if one < share]
        assert len(chosen) == pytest.approx(10_000 * share, rel=0.01, abs=1)
        gaps = {after - before for before, after in pairwise(chosen)}
        assert len(gaps) > 1 and max(gaps) < 3 / share
    assert drawn("key", "", 5) != drawn("key", "draft ", 5) != drawn("another", "draft ", 5)
