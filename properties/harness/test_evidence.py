"""What the explainer takes for evidence: a further run of a forward that fails is none."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.explain.cause import diverged_cause
from paritybit.harness.explain.counterfactuals.elements import Element
from paritybit.harness.explain.origins.tables import Cell
from paritybit.harness.explain.recorded import RecordedForward, Run, record_forward
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule

SCHEDULE = Schedule((Admit(1, 16), Admit(2, 16), Decode((0, 1)), Decode((0,))))
"""Violates kv_parity at its last forward, with swa_pad switched on."""


def test_a_further_run_that_fails_is_no_evidence(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run with nothing changed is right: it only shows that the forward repeats."""
    again = RecordedForward.again

    def failing(
        recorded: RecordedForward,
        elements: tuple[Element, ...] = (),
        *,
        captured: bool = True,
        cells: Sequence[Cell] = (),
    ) -> Run:
        run = again(recorded, elements, captured=captured, cells=cells)
        changed = elements or cells or not captured
        return replace(run, failed="no such slot") if changed else run

    trial = TrialConfig(device=device).with_bug("swa_pad")
    lockstep = Lockstep(trial, records_ops=True)
    with torch.inference_mode():
        cause = diverged_cause(record_forward(lockstep.pair, SCHEDULE, 3))
        assert cause is not None
        assert (cause.blame, cause.uncaptured_run) == ("inputs", "as the graph")
        assert cause.index is not None
        monkeypatch.setattr(RecordedForward, "again", failing)
        cause = diverged_cause(record_forward(lockstep.pair, SCHEDULE, 3))
    assert cause is not None
    assert (cause.blame, cause.uncaptured_run) == ("not known", None)
    assert cause.index is None
