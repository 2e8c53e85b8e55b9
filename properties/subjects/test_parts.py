"""A bug of a code path is a class that comes before the right one."""

from dataclasses import replace

import pytest
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.reference.allocator import Allocator
from paritybit.reference.batch import Mode
from paritybit.reference.pool import Tables
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import clean_subject, lacking, switched_on
from paritybit.subjects.parts import RIGHT_PARTS, Part, Parts
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.toggles import LocationScheme

from properties.support.subjects.leaking import Leaking


class Base:
    """A part."""

    def words(self) -> list[str]:
        """Return who was asked."""
        return ["right"]


class First(Base):
    """A difference."""

    def words(self) -> list[str]:
        """Return who was asked."""
        return ["first", *super().words()]


class Second(Base):
    """A further difference."""

    def words(self) -> list[str]:
        """Return who was asked."""
        return ["second", *super().words()]


class SmallerWindow(GraphRunner):
    """A runner whose window is one short."""

    @property
    def window(self) -> int:
        """Return a key too few."""
        return super().window - 1


class OtherTables(Tables):
    """Index tables of another class."""


class OtherPool(SubjectPool):
    """A pool of another class."""


def bug(**parts: type) -> Bug:
    """Return a bug that differs in some parts, by the name of the part."""
    return Bug(
        name="planted",
        family="planted",
        scheme=LocationScheme.MEMO,
        thread="",
        mechanism="",
        parts={Part[name]: part for name, part in parts.items()},
    )


def test_a_part_without_a_difference_is_the_right_class_itself() -> None:
    assert RIGHT_PARTS.of(Part.POOL, Base) is Base


def test_differences_stand_before_the_right_class_the_last_one_outermost() -> None:
    parts = Parts().with_before({Part.POOL: First}).with_before({Part.POOL: Second})
    built = parts.of(Part.POOL, Base)
    assert built().words() == ["second", "first", "right"]
    assert issubclass(built, Base)
    assert parts.of(Part.TABLES, Base) is Base


def test_a_bug_of_another_mode_is_lacking() -> None:
    verify_only = replace(bug(), modes=frozenset({Mode.TARGET_VERIFY}))
    assert lacking(verify_only, "target_verify") is None
    assert lacking(verify_only, "decode") == "it runs no forward of mode target_verify"
    with pytest.raises(KeyError, match="runs no forward"):
        switched_on(verify_only, clean_subject("decode", LocationScheme.MEMO))


def test_what_a_bug_overrides_is_what_the_graph_world_is_built_from(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner on trial and what the engine has once differ; the eager world is right."""
    planted = bug(RUNNER=SmallerWindow, ALLOCATOR=Leaking, TABLES=OtherTables, POOL=OtherPool)
    monkeypatch.setitem(BUGS, planted.name, planted)
    trial = TrialConfig("decode", device=device, buckets=(2,), token_buckets=(4,))
    pair = Pair(trial.with_bug(planted.name))
    engine = pair.subject.engine  # type: ignore[attr-defined]  # ours
    windows = {mode: runner.window for mode, runner in engine.runners.items()}
    assert windows.pop(Mode.DECODE) == pair.config.window - 1
    assert set(windows.values()) == {pair.config.window}
    assert all(isinstance(pool, OtherPool) for pool in engine.pools.values())
    assert isinstance(pair.graph.allocator, Leaking)
    assert isinstance(pair.graph_pools.tables, OtherTables)
    assert type(pair.eager.allocator) is Allocator
    assert type(pair.eager_pools.tables) is Tables


def test_a_window_that_is_one_short_in_the_subject_alone_is_red(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = bug(RUNNER=SmallerWindow)
    monkeypatch.setitem(BUGS, planted.name, planted)
    trial = TrialConfig("decode", device=device, buckets=(2,), token_buckets=(4,))
    schedule = Schedule((Admit(9, 99), Decode((0,))), 0)
    assert Lockstep(trial).play(schedule).violations == ()
    assert "logits_parity" in Lockstep(trial.with_bug(planted.name)).play(schedule).violated
