"""What an engine holds: static buffers of its graphs, and tensors of batches.

Stand-ins are of a few lines each, so that no release is needed.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns.hunt import PlayingFailedError
from paritybit.harness.engines.faults import Finding
from paritybit.harness.engines.legs import Leg
from paritybit.harness.engines.playlist import Kind
from paritybit.harness.engines.worker import LegAnswer, _Session
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.engines.sglang.runners.decode import BACKEND_LOCATIONS, DecodeRunner
from paritybit.subjects.engines.sglang.runners.held import HeldByBackends
from paritybit.subjects.engines.shared.graphs import Replays
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.engines.shared.tensors import Reissued, bring_back

SIZES = (8, 4, 2)
"""Of the graphs that a backend plans for, in the order in which they are captured."""


class Backend:
    """Stands for an attention backend: what it holds of graphs, and what of the batch at hand."""

    def __init__(self) -> None:
        self.req_to_token = torch.zeros(4)
        self.kv_indptr = torch.zeros(9)
        self.cuda_graph_num_kv_splits = torch.zeros(8)
        self.window_writes = torch.zeros(8, dtype=torch.int64)

    def plan(self, size: int, **anew: torch.Tensor) -> None:
        """Plan a batch; some tensors are bound anew for each."""
        self.last_locations = torch.zeros(size)
        self.given = self.window_writes[:size]
        vars(self).update(anew)


def captured(**anew: Any) -> tuple[Backend, HeldByBackends]:
    """Return a backend that has planned for every graph as it was captured, and what it holds."""
    backend = Backend()
    held = HeldByBackends(lambda: {"attention": backend})
    with held.watched():
        for size in SIZES:
            backend.plan(size, **{name: made(size) for name, made in anew.items()})
            for watch in Replays.watchers:
                watch()
    return backend, held


STATIC = {"attention.kv_indptr", "attention.cuda_graph_num_kv_splits", "attention.window_writes"}


def test_a_tensor_of_the_batch_at_hand_is_no_static_buffer_and_is_said() -> None:
    backend, held = captured()
    assert held.statics().keys() == STATIC
    (given, last) = held.notes()
    assert given.startswith("not checked directly: attention.given. Each capture binds it")
    assert last.startswith("not checked directly: attention.last_locations. ")
    backend.plan(3)
    assert held.statics().keys() == STATIC


def test_a_tensor_that_came_after_the_graphs_is_read_by_none() -> None:
    backend, held = captured()
    backend.plan(4, planned_lengths=torch.zeros(4))
    assert held.statics().keys() == STATIC
    assert "attention.planned_lengths" in held.all()


@pytest.mark.parametrize("name", ["cuda_graph_num_kv_splits", "kv_indptr"])
def test_a_buffer_of_graphs_by_its_name_is_static_even_if_each_capture_has_another(
    name: str,
) -> None:
    _, held = captured(**{name: torch.zeros})
    assert held.statics().keys() == STATIC


def test_locations_that_the_store_is_given_are_static_however_they_are_bound() -> None:
    backend, held = captured()
    made = object.__new__(DecodeRunner)
    made.runner, made.backend = SimpleNamespace(buffers=SimpleNamespace()), backend
    vars(made)["held"] = held
    made.find_locations([backend.given])
    assert made.locations == "attention.window_writes"
    assert made.statics()[BACKEND_LOCATIONS] is backend.window_writes
    del backend.window_writes
    made.find_locations([backend.given])
    assert made.locations == "attention.given"
    assert made.statics()[BACKEND_LOCATIONS] is backend.given


def test_only_what_is_still_of_its_shape_is_brought_back() -> None:
    before = {"lengths": torch.ones(3), "rows": torch.ones(3)}
    now = {"lengths": torch.zeros(3), "rows": torch.zeros(2), "new": torch.zeros(1)}
    bring_back(now, before)
    assert [held.tolist() for held in now.values()] == [[1, 1, 1], [0, 0], [0]]


FOUND = Finding("decode", "gpt_oss", "kv_parity", "step 6: slot 7")
CASE = Case(TrialConfig(), Schedule(()), "kv_parity", 5, ())
FRAME = 'Traceback (most recent call last):\n  File "block_table.py", line 7, in gather\n'
FAILED = PlayingFailedError(f"{FRAME}TypeError: copy_() takes from 1 to 2")
MISSING = PlayingFailedError(
    f"{FRAME}{PartMissingError.__module__}.PartMissingError: the engine has no part"
)


@pytest.mark.parametrize(
    ("error", "kind", "kept"),
    [
        (FAILED, Kind.REPLAYED, True),
        (MISSING, Kind.REPLAYED, False),
        (PartMissingError("the engine has no part"), Kind.REPLAYED, False),
        (MISSING, Kind.SOAKED, True),
    ],
)
def test_what_schedules_showed_is_kept_where_the_engine_fails_later_and_nothing_is_absent(
    error: Exception, kind: Kind, kept: bool
) -> None:
    leg: Any = object.__new__(Leg)
    leg.findings, leg.to_json, leg.unshrunk = lambda: [FOUND], dict, lambda seed: [CASE]
    session: Any = object.__new__(_Session)
    session.refused, session.kept = None, leg
    session.task = SimpleNamespace(kind=kind, seed=5)
    verdicts = [{"fault": name, "verdict": name} for name in ("present", "absent")]
    judged = [SimpleNamespace(to_json=lambda one=one: one) for one in verdicts]
    session.evidence = SimpleNamespace(judge=lambda: judged)
    session.answer = LegAnswer("decode gpt_oss", "decode", "gpt_oss")
    session.keep(error)
    answer = session.answer
    assert [one["property"] for one in answer.findings] == ["kv_parity"] * kept
    assert answer.cases == [CASE] * kept
    assert answer.faults == [{"fault": "present", "verdict": "present"}] * kept


def test_a_batch_lies_where_the_last_one_of_its_size_did_unless_that_is_held_still() -> None:
    reissued = Reissued()
    first = reissued.copy("lengths", torch.tensor([[1, 2], [3, 4]]).t())
    assert first.tolist() == [[1, 3], [2, 4]]
    part, place = first[1:], first.data_ptr()
    del first
    second = reissued.copy("lengths", torch.tensor([[5, 6], [7, 8]]))
    assert second.data_ptr() != place
    assert part.tolist() == [[2, 4]]
    place = second.data_ptr()
    del second
    assert reissued.copy("rows", torch.tensor([[5, 6], [7, 8]])).data_ptr() != place
    third = reissued.copy("lengths", torch.tensor([[9, 9], [9, 8]]))
    assert (third.data_ptr(), third.tolist()) == (place, [[9, 9], [9, 8]])


def test_a_memo_of_the_address_of_a_batch_s_tensor_finds_the_one_before() -> None:
    runner: Any = object.__new__(DecodeRunner)
    memo, seen = dict[int, int](), list[int]()
    for slot in (3, 5):
        batch = runner.reissue(SimpleNamespace(out_cache_loc=torch.tensor([slot])))
        loc = batch.out_cache_loc
        seen.append(memo.setdefault(loc.data_ptr(), int(loc)))
        del batch, loc
    assert seen == [3, 3]
