"""State of an engine that is kept where neither an attribute nor an item shows it."""

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import pytest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.subjects import pool

TRIAL = TrialConfig(buckets=(2,), token_buckets=(4,)).with_bug("swa_pad")
"""The trial of a bug that lies in no capture, so few runners are captured."""

DECODES = Schedule((Admit(3, 9), Decode((0,))))


def caching(maxsize: int | None = None, kind: type = list) -> Any:
    """Return a function of the engine that has cached lists, or others, for 1 and 2."""

    def made(key: int) -> Any:
        return kind([(key, key)])

    made.__module__ = pool.__name__
    cached = lru_cache(maxsize)(made)
    cached(1), cached(2)
    return cached


def of_a_thread() -> threading.local:
    """Return an object of which each thread has its own attributes."""
    local = threading.local()
    local.last = 0
    return local


def of_a_context() -> "ContextVar[int]":
    """Return a variable of which each context has its own value."""
    return ContextVar("last", default=0)


def read_only() -> "np.ndarray[Any, Any]":
    """Return an array that may not be written, in the memory of one that may."""
    view = np.zeros(5000)[:]
    view.setflags(write=False)
    return view


def put(items: Any, place: int) -> None:
    """Set an item to a new value."""
    items[place] = 7


CHANGES: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object], str]] = {
    "a new result": (caching, lambda made: made(3), "'s cache"),
    "a result": (caching, lambda made: put(made(1), 0), "'s cache[1][0]"),
    "a new result of few": (partial(caching, 8), lambda made: made(3), "'s cache"),
    "a result of few": (partial(caching, 8), lambda made: put(made(1), 0), "'s cache[1][0]"),
    "a mapping of few": (partial(caching, 8, dict), lambda made: put(made(1), 1), "'s cache[1][1]"),
    "a dropped result": (partial(caching, 2), lambda made: made(3), "'s cache[1]"),
    "of a thread": (of_a_thread, lambda local: setattr(local, "last", 7), "['last']"),
    "of a context": (of_a_context, lambda variable: variable.set(7), ""),
    "a long array": (lambda: np.zeros(5000), lambda array: put(array, 2500), ""),
    "an array backwards": (lambda: np.zeros(5000)[::-1], lambda array: put(array, 2500), ""),
    "what an array only reads": (read_only, lambda array: put(array.base, 2500), ""),
    "the shape of an array": (lambda: np.zeros(5000), lambda array: array.resize(50, 100), ""),
    "an array of objects": (lambda: np.array([1, None]), lambda array: put(array, 0), ""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_is_undeclared(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, change, where = CHANGES[what]
    holder = made()
    monkeypatch.setattr(pool, "kept", holder, raising=False)
    lockstep = Lockstep(TRIAL, ["declared_state"])
    assert lockstep.play(DECODES).violations == ()
    change(holder)
    (violation,) = lockstep.play(DECODES).violations
    assert violation.message.startswith(f"{pool.__name__}.kept{where} was ")


def test_a_cached_function_may_have_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "kept", cache(partial(int, 1)), raising=False)
    outcome = Lockstep(TRIAL, ["declared_state"]).play(DECODES)
    assert (outcome.error, outcome.violations) == (None, ())


def test_the_use_of_a_cached_result_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made = caching(2)
    monkeypatch.setattr(pool, "kept", made, raising=False)
    lockstep = Lockstep(TRIAL, ["declared_state"])
    assert lockstep.play(DECODES).violations == ()
    made(1)
    assert lockstep.play(DECODES).violations == ()
