"""An engine that leaves its requests waiting is told from one that serves them."""

import importlib
from types import SimpleNamespace

import pytest

from paritybit.drive.models import GEMMA4
from paritybit.drive.playing import LONGEST_WAIT, EngineFailedError
from paritybit.drive.serving import Engine
from paritybit.drive.settings import Served
from paritybit.drive.stand_ins import speculation


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands at its last entry."""
    now = [100.0]
    playing = importlib.import_module("paritybit.drive.playing")
    monkeypatch.setattr(playing.time, "monotonic", lambda: now[-1])
    return now


@pytest.mark.parametrize(("ran", "waiting", "fails"), [(0, 2, True), (1, 2, False), (0, 0, False)])
def test_an_engine_that_serves_nobody_who_waits_has_stalled(
    clock: list[float], ran: int, waiting: int, fails: bool
) -> None:
    engine = Engine(Served(GEMMA4))
    engine._scheduler = SimpleNamespace(forward_ct=7)
    engine.player = SimpleNamespace(open=waiting, poll=lambda: ["polled"])  # type: ignore[assignment]
    assert engine._poll() == ["polled"]
    clock.append(clock[-1] + LONGEST_WAIT + 1)
    engine._scheduler.forward_ct += ran
    if fails:
        with pytest.raises(EngineFailedError, match="stalled: 2 requests wait and no batch ran"):
            engine._poll()
    else:
        assert engine._poll() == ["polled"]


def test_batches_with_drafts_overlap_on_a_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = SimpleNamespace(_disable_overlap_schedule_for_cpu=lambda arguments: 1 / 0)
    monkeypatch.setattr(speculation, "found", lambda name: rules)
    assert speculation.overlap_as_on_cuda() is None
    rules._disable_overlap_schedule_for_cpu(None)
    monkeypatch.setattr(speculation, "found", lambda name: None)
    assert speculation.overlap_as_on_cuda() == ""
