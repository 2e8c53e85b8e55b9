"""Fixtures of several folders of tests, whose conftest.py names what it wants of them."""

from collections.abc import Iterator

import pytest
import torch
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.machine import gpus


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Inference mode and one thread, as the harness has them; then as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver name eight GPUs."""
    monkeypatch.setattr(gpus, "gpu_names", lambda: ["a GPU"] * 8)


@pytest.fixture
def captures_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture what a schedule needs without a bug too, as with most bugs of the catalogue.

    Else an engine captures all runners at once, which takes longer than few steps do.
    """
    with_bugs = vars(TrialConfig)["captures_all"].fget
    when_needed = property(lambda trial: bool(trial.bugs) and with_bugs(trial))
    monkeypatch.setattr(TrialConfig, "captures_all", when_needed)
