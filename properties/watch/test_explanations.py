"""What a finding says about a wrong value."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.watch.checks.stale_input import judge
from paritybit.watch.facts import Forward, Group, Layer, Row, StaticInput
from paritybit.watch.ledger import Ledger, Names
from paritybit.watch.observations import Inputs

SLOTS = {"a": [10, 11, 12], "b": [20, 21, 22, 23, 24]}


def a_row(request: str, cached: int, computed: int) -> Row:
    """Return a row whose tokens are its slots + 1000."""
    slots = SLOTS[request]
    tokens = [slot + 1000 for slot in slots]
    return Row(request, tokens, cached, computed, {"kv": torch.tensor(slots)})


FORWARD = Forward("extend", (a_row("a", 2, 1), a_row("b", 3, 2)))


def told(
    held: Sequence[int],
    right: Sequence[int],
    name: str = "input",
    writes: str | None = None,
    before: Mapping[str, tuple[int, Tensor]] | None = None,
) -> str:
    """Return the text of the finding about an input that holds wrong values."""
    size = len(held)
    static = StaticInput(
        name, torch.tensor(held), size, size, expected=torch.tensor(right), writes=writes
    )
    group = Group("kv", (Layer("layer 0", (torch.randn(32, 2),)),))
    ledgers = {} if writes is None else {writes: Ledger(group, Names())}
    given = Inputs(7, FORWARD, "batch", [static], {}, before or {}, ledgers)
    (finding,) = judge(given)
    return finding.text


@pytest.mark.parametrize(
    ("held", "right", "more", "what"),
    [
        ([9, 4], [3, 5], {"before": {"input": (6, torch.tensor([9, 4]))}}, "held in forward 6"),
        ([8, 5], [3, 5], {}, "input holds 8 at live entry 0, not 3"),
        ([12, 20, 24], [12, 23, 24], {"writes": "kv"},
         "slot 20 is that of position 0 of request b"),
    ],
)  # fmt: skip
def test_a_finding_says_what_a_wrong_value_equals(
    held: list[int], right: list[int], more: dict[str, Any], what: str
) -> None:
    assert what in told(held, right, **more)
