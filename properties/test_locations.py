"""Write locations and key lists of the subject: translation by era, the memo, the window.

What the lists must hold is computed here once more in plain Python.
"""

import logging
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.arms import Arms
from harness.generate import schedules
from harness.lockstep import Lockstep
from harness.schedule import (
    Admit,
    Decode,
    Evict,
    Extend,
    Finish,
    Idle,
    Resume,
    Retract,
    Schedule,
    Step,
)
from harness.trial import SUBJECT_LOGGER, Trial
from reference.batch import ForwardBatch, Mode, Span, Tables, prepare
from reference.config import PRESETS, Kind
from reference.pool import HybridKVPool, PoolSizes
from subjects.behaviour import Era, Invalidation
from subjects.buffers import BufferPool
from subjects.bugs import BUGS
from subjects.metadata import KeyLists, StaticMetadata, extend_lists
from subjects.pool import TRANSLATE, SubjectPool

CONFIG = PRESETS["gpt_oss"].tiny
BS = 6


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    """Live in inference mode, as the harness does."""
    with torch.inference_mode():
        yield


@cache
def storage_pool(device: str) -> HybridKVPool:
    """Return a pool whose full slot f, but for slots 5 and 6, is mapped to SWA slot 70 - f.

    Cell (row, position) of its request table holds a slot of its own kind, row 0 zeros.
    """
    pool = HybridKVPool(CONFIG, PoolSizes(), torch.float32, torch.device(device))
    mapping = pool.full_to_swa_index_mapping
    mapping[1:70] = torch.arange(69, 0, -1, device=device)
    mapping[5:7] = 0
    row, position = torch.meshgrid(
        torch.arange(1, 17), torch.arange(CONFIG.max_context), indexing="ij"
    )
    pool.req_to_token[1:] = ((row * 31 + position * 7) % 69 + 1).to(device, torch.int32)
    return pool


def subject_pool(era: Era, device: str) -> SubjectPool:
    """Return the engine's view of that pool."""
    return SubjectPool(storage_pool(device), Trial(device=device).ops(), era, SUBJECT_LOGGER)


def locs(device: str, *values: int) -> Tensor:
    """Return full slots as a batch holds them."""
    return torch.tensor(values, device=device)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the list that the pool's warnings are added to."""
    caplog.set_level(logging.WARNING)
    return Messages(caplog)


class Messages(list[str]):
    """Placeholder."""
