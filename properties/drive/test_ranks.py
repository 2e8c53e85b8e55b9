"""The second data-parallel rank, which no process has."""

import sys
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.drive.stand_ins.ranks import (
    DECODE,
    IDLE,
    PREFILL,
    AloneGroup,
    Other,
    agree_with_another,
    steps_of,
)

ForwardMode = Enum("ForwardMode", ["EXTEND", "DECODE", "IDLE"])


@dataclass
class Told:
    """What schedulers tell each other, as an engine has it. `all_told` is what was gathered."""

    num_tokens: int
    num_tokens_for_logprob: int
    can_run_decode_cuda_graph: bool
    is_extend_in_batch: bool
    local_can_run_tbo: bool
    local_forward_mode: int
    all_told: list[list[int]] = field(default_factory=list)

    def _get_local_tensor(self, device: str) -> Tensor:
        values = [int(value) for value in list(vars(self).values())[:6]]
        return torch.tensor(values, device=device)

    def all_gather(self, device: str, group: Any) -> None:
        """Gather what each rank says."""
        gathered = torch.empty(12, dtype=torch.int64)
        group.all_gather_single(gathered, self._get_local_tensor(device))
        self.all_told = gathered.view(2, 6).tolist()


def test_the_other_members_of_a_group_send_zeros() -> None:
    group, given = AloneGroup(1, 2), torch.arange(1.0, 3)
    gathered, parts = torch.full((4,), 9.0), [torch.full((2,), 9.0) for _ in range(2)]
    group.all_gather_single(gathered, given).wait()
    group.allgather([parts], [given]).wait()
    assert gathered.tolist() == torch.cat(parts).tolist() == [0, 0, 1, 2]
    own = torch.empty(2)
    group.reduce_scatter_single(own, torch.arange(4.0)).wait()
    assert own.tolist() == [2, 3]
    group.allreduce([given]).wait()
    assert given.tolist() == [1, 2]


def test_the_other_rank_does_the_same_at_the_same_seed_and_all_that_there_is() -> None:
    first, again, other = (list(islice(steps_of(seed, 4, 16), 200)) for seed in (3, 3, 4))
    assert first == again != other
    assert {kind for kind, _ in first} == {IDLE, PREFILL, DECODE}
    most = {kind: max(size for what, size in first if what == kind) for kind, _ in first}
    assert (most[IDLE], most[DECODE]) == (0, 4)
    assert 4 < most[PREFILL] <= 16


def test_a_scheduler_hears_what_the_other_rank_does(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sglang.srt.model_executor.forward_batch_info"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(ForwardMode=ForwardMode))
    kind = type("Copy", (Told,), {})
    agree_with_another(kind)
    monkeypatch.setattr(Other, "steps", iter([(DECODE, 3), (PREFILL, 5), (IDLE, 0)]))
    told = kind(0, 0, True, False, True, ForwardMode.IDLE.value)
    own = told._get_local_tensor("cpu").tolist()
    others = [[3, 3, 1, 0, 0, 2], [5, 1, 0, 1, 0, 1], [0, 0, 1, 0, 0, 3]]
    for expected in others:
        told.all_gather("cpu", AloneGroup(0, 2))
        assert told.all_told == [own, expected]
    assert AloneGroup.sent is torch.zeros_like
