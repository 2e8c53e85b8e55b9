"""Fixtures of several folders of tests, whose conftest.py names what it wants of them."""

from collections.abc import Iterator

import pytest
import torch
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
    monkeypatch.setattr(gpus, "listed_gpus", lambda: [("a GPU", "")] * 8)
