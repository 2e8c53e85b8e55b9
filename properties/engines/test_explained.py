"""What a page shows of an engine's static inputs: who left each element, and which are stale."""

from types import SimpleNamespace
from typing import Any

import torch
from paritybit.harness.engines.explained.inputs import InputLedger
from paritybit.harness.explain.facts import CAPTURE, Writer
from paritybit.reference.batch import Mode

REQUESTS = {11: 3, 12: 5, 13: 8}
"""Rows of the request table, and who is there."""


def replay(place: int, rows: list[int], given: list[int], held: list[int]) -> Any:
    """Return an observation of a replay of some rows in a bucket of four, one token each."""
    spans = [SimpleNamespace(row=row, begin=4, end=5) for row in rows]
    batch = SimpleNamespace(spans=spans, live_tokens=len(rows), live_requests=len(rows))
    return SimpleNamespace(
        place=place,
        static={"slots": torch.tensor(held), "weights": torch.ones(4)},
        graph=SimpleNamespace(batch=batch, spans=spans, serial_at=REQUESTS.__getitem__),
        replay=SimpleNamespace(
            given={"slots": torch.tensor(given)}, bucket=4, live_size=len(rows), live_rows=len(rows)
        ),
    )


def played(*observations: Any) -> InputLedger:
    """Return the ledger of some replays, of inputs that were zeros at the capture."""
    ledger = InputLedger("decode")
    ledger.begin({"slots": torch.zeros(6, dtype=torch.int64), "weights": torch.ones(4)})
    for observation in observations:
        ledger.see(observation.static, observation)
    return ledger


FULL = replay(2, [11, 12, 13], [21, 22, 23], [21, 22, 23, 0, 0, 0])
SMALLER = replay(5, [12, 11], [31, 32], [31, 32, 23, 0, 0, 0])


def test_an_element_was_left_by_the_step_and_the_request_that_brought_it() -> None:
    ledger = played(FULL, SMALLER)
    held = ledger.inputs["slots"]
    assert held.left_by[:4] == [
        Writer(5, "decode", 0, 5),
        Writer(5, "decode", 1, 3),
        Writer(2, "decode", 2, 8),
        Writer(CAPTURE, "decode", 0, None),
    ]
    assert held.how[:4] == ["copied", "copied", "copied", "capture"]
    assert ledger.stale("slots", SMALLER) == [2]


def test_the_drawing_has_the_bucket_s_elements_and_only_whole_numbers() -> None:
    (row,) = played(FULL, SMALLER).rows(SMALLER, ())
    assert (row.name, row.live, row.values) == ("slots", 2, (31, 32, 23, 0))
    assert (row.left_by, row.stale) == ((5, 5, 2, CAPTURE), (2,))


def test_padding_that_is_reset_was_left_by_the_step_that_reset_it() -> None:
    reset = replay(5, [12, 11], [31, 32], [31, 32, 0, 0, 0, 0])
    ledger = played(FULL, reset)
    held = ledger.inputs["slots"]
    assert (held.left_by[2], held.how[2]) == (Writer(5, "decode", 2, None), "reset")
    assert ledger.stale("slots", reset) == []


def test_a_live_element_that_was_not_refreshed_was_left_by_an_earlier_step() -> None:
    ledger = played(FULL, replay(5, [12, 11], [31, 32], [21, 32, 0, 0, 0, 0]))
    assert ledger.inputs["slots"].left_by[0] == Writer(2, "decode", 0, 3)


def test_what_a_forward_without_a_graph_left_in_static_inputs_is_its_own() -> None:
    prefill = replay(1, [11], [21], [21, 22, 0, 0, 0, 0])
    prefill.replay, prefill.mode = None, Mode.EXTEND
    ledger = played(prefill, replay(2, [11], [31], [31, 22, 0, 0, 0, 0]))
    held = ledger.inputs["slots"]
    assert held.left_by[1] == Writer(1, "extend without a graph", 1, 3)
    assert held.how[1] == "copied"
    assert ledger.stale("slots", replay(2, [11], [31], [])) == [1]
