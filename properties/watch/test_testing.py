"""`check_replay` in an engine's own test: right replays pass, and each fault raises a report."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.testing import StaticInput, UndecidedError, check_replay
from paritybit.testing.outcome import reports
from paritybit.watch.checks import CHECKS

LIVE, BUCKET, SLOTS = 2, 4, 8


class Toy:
    """A decode step over static buffers; row r writes ids[r] into K and V at slots[r]."""

    def __init__(self) -> None:
        self.kv = [torch.randn(SLOTS, 3), torch.randn(SLOTS, 3)]
        self.ids = torch.tensor([5, 6, 0, 0])
        self.slots = torch.tensor([3, 4, 0, 0])
        self.runs = 0

    def replay(self) -> dict[str, Tensor]:
        """Write the KV of all rows, padded ones too, and return the live logits."""
        self.runs += 1
        for tensor in self.kv:
            tensor[self.slots] = self.ids[:, None].float()
        return {"logits": self.ids[:LIVE] * 2.0}

    def check(self, **changes: Any) -> None:
        """Check a replay of this toy, with some arguments changed."""
        given: dict[str, Any] = {
            "replay": self.replay,
            "kv": {"full": self.kv},
            "owned_slots": torch.tensor([3, 4]),
            "static_inputs": [
                StaticInput("ids", self.ids, LIVE, BUCKET, valid=(0, 100)),
                StaticInput("slots", self.slots, LIVE, BUCKET, source="toy.py:7"),
            ],
            "run_eager": self.replay,
        }
        if "owned_slots" not in changes:
            given["owned_slots"] = {"full": given["owned_slots"]}
        check_replay(**{**given, **changes})


def test_a_right_replay_passes_and_leaves_what_it_computed() -> None:
    toy = Toy()
    toy.check()
    assert toy.runs > 3
    assert toy.kv[0][3:5, 0].tolist() == [5, 6]
    assert (toy.ids.tolist(), toy.slots.tolist()) == ([5, 6, 0, 0], [3, 4, 0, 0])


def test_a_stray_write_names_the_input_whose_padding_explains_it() -> None:
    toy = Toy()
    toy.slots[2] = 6
    with pytest.raises(AssertionError) as raised:
        toy.check()
    text = str(raised.value)
    assert "stray write: the replay of the graph changed slot 6 (full)" in text
    assert "cause: the padded tail of slots alone explains it (toy.py:7)" in text
    assert toy.slots.tolist() == [3, 4, 6, 0]


def test_slots_that_are_not_written_are_reported() -> None:
    toy = Toy()
    with pytest.raises(AssertionError, match="unwritten slot"):
        toy.check(owned_slots={"full": torch.tensor([3, 4, 5])})


def wrong_once(toy: Toy) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"logits": toy.replay()["logits"] + toy.runs}


def leaking(toy: Toy) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"logits": toy.replay()["logits"] + toy.ids[LIVE]}


@pytest.mark.parametrize(
    ("faulty", "check"), [(wrong_once, "unrepeatable replay"), (leaking, "padding leak")]
)
def test_a_replay_that_depends_on_more_than_its_live_inputs_is_reported(
    faulty: Callable[[Toy], Callable[[], dict[str, Tensor]]], check: str
) -> None:
    toy = Toy()
    with pytest.raises(AssertionError, match=check):
        toy.check(replay=faulty(toy), run_eager=None)


def test_an_eager_run_that_differs_is_reported() -> None:
    toy = Toy()

    def eager() -> dict[str, Tensor]:
        result = toy.replay()
        toy.kv[1][3] += 1
        return result

    with pytest.raises(AssertionError, match="graph and eager differ"):
        toy.check(run_eager=eager)


def test_groups_and_outputs_may_be_unnamed_or_absent() -> None:
    toy = Toy()
    toy.check(kv=toy.kv, owned_slots=torch.tensor([[3], [4]]))
    toy.check(replay=lambda: next(iter(toy.replay().values())), run_eager=None)

    def silent() -> None:
        toy.replay()

    toy.slots[3] = 7
    with pytest.raises(AssertionError, match="the padded tail of slots alone explains it"):
        toy.check(replay=silent, run_eager=None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv": []}, "kv holds no tensors"),
        ({"owned_slots": {"full": torch.empty(0)}}, "owned_slots is empty"),
        ({"owned_slots": {"swa": torch.tensor([3])}}, "groups that kv lacks: swa"),
        ({"owned_slots": {"full": torch.tensor([0])}}, "all reserved"),
    ],
)
def test_nothing_to_judge_is_an_error(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Toy().check(**changes)


def test_findings_of_one_key_are_one_report() -> None:
    found = {"check": "stray write", "text": "slot 7 changed", "key": "stray write | kv"}
    text = reports([found, {**found, "text": "slot 8 changed"}, {**found, "key": "another"}])
    assert text.splitlines() == [
        "ERROR: paritybit: stray write: slot 7 changed",
        "  where: between forwards",
        "  seen: 2 times",
        f"  law: {CHECKS['stray write'].law}",
        "",
        "ERROR: paritybit: stray write: slot 7 changed",
        "  where: between forwards",
        f"  law: {CHECKS['stray write'].law}",
    ]


def test_what_cannot_be_judged_is_undecided() -> None:
    def eager() -> None:
        raise RuntimeError("no eager path")

    with pytest.raises(UndecidedError, match="RuntimeError: no eager path"):
        Toy().check(run_eager=eager)
