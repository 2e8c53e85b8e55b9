"""An error that an engine raises as it follows the scheduler counts as the subject's."""

import pytest
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.schedules.schedule import Admit
from paritybit.subjects.engine import ReplicaEngine


def test_an_error_of_ownership_changed_is_an_error_of_the_subject(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = list[str]()

    def followed(_: ReplicaEngine) -> None:
        if broken:
            raise RuntimeError(broken[0])

    monkeypatch.setattr(ReplicaEngine, "ownership_changed", followed)
    pair = Pair(TrialConfig())
    pair.reset(seed=0)
    broken.append("a slot is freed twice")
    with pytest.raises(SubjectFailedError, match="a slot is freed twice"):
        pair.step(Admit(3, 8))
