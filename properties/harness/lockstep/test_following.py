"""An engine follows its side as that plans: what it raises then is the subject's."""

import pytest
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import Engines, Pair, captured_engines
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.schedules.schedule import Admit


def test_an_error_of_ownership_changed_is_an_error_of_the_subject() -> None:
    broken = list[str]()

    def engines(pair: Pair) -> Engines:
        subject, fresh = captured_engines(pair)
        follow = subject.ownership_changed

        def followed() -> None:
            if broken:
                raise RuntimeError(broken[0])
            follow()

        vars(subject)["ownership_changed"] = followed
        return subject, fresh

    pair = Pair(TrialConfig(), engines=engines)
    pair.reset(seed=0)
    broken.append("a slot is freed twice")
    with pytest.raises(SubjectFailedError, match="a slot is freed twice"):
        pair.step(Admit(3, 8))
