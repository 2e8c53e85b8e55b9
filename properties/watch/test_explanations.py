"""What a finding says about a wrong value."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.watch.checks.stale_input import judge
from paritybit.watch.facts import Base, Forward, Group, Layer, Replay, Row, StaticInput
from paritybit.watch.ledger import Ledger, Names
from paritybit.watch.observations import Inputs
from paritybit.watch.replays.causes import suspects_of
from paritybit.watch.replays.replaying import held_by
from paritybit.watch.replays.rerun import Saved

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
        ([4, 4], [3, 4], {}, "not 3; that is the value of request b"),
        ([12, 20, 24], [12, 23, 24], {"writes": "kv"},
         "slot 20 is that of position 0 of request b"),
    ],
)  # fmt: skip
def test_a_finding_says_what_a_wrong_value_equals(
    held: list[int], right: list[int], more: dict[str, Any], what: str
) -> None:
    assert what in told(held, right, **more)


def made_of(base: Base, held: Sequence[int], implied: Sequence[int] | None) -> StaticInput:
    """Return an input with slots to write, and what a wrong base implies for it."""
    follows = None if implied is None else torch.tensor(implied)
    return StaticInput(
        *("slots", torch.tensor(held), 2, 2),
        writes="kv",
        expected=torch.tensor([1, 2]),
        implied=[(base, follows)],
    )


@pytest.mark.parametrize(
    ("held", "implied", "cause", "holds"),
    [
        ([1, 9], [1, 9], "lengths", "lengths"),
        ([1, 9], [1, 8], "slots", "slots holds the slot"),
        ([1, 9], [1, 2], "slots", "slots holds the slot"),  # The base has nothing to do with it.
        ([1, 9], None, None, "slots holds the slot"),
    ],
)
def test_what_follows_from_a_wrong_input_is_not_to_blame(
    held: list[int], implied: list[int] | None, cause: str | None, holds: str
) -> None:
    static = made_of(Base("lengths", "batch", None), held, implied)
    (found,) = judge(Inputs(7, FORWARD, "batch", [static], {}))
    assert (found.cause and found.cause["what"]) == cause
    ((stray, slots),) = held_by([static], "kv", torch.tensor([9]))
    assert (stray["what"], slots) == (holds, [9])


def test_what_may_follow_from_an_earlier_wrong_input_has_no_known_cause() -> None:
    first, second = (Base(name, "batch", None) for name in ("counts", "positions"))
    static = made_of(second, [1, 9], [1, 9])
    static.implied = [(first, None), *static.implied]
    (found,) = judge(Inputs(7, FORWARD, "batch", [static], {}))
    assert found.cause is None
    static.implied = [*static.implied[1:], (first, None)]
    assert (static.cause(torch.tensor([1, 9])) or {})["what"] == "positions"


def test_an_experiment_names_the_input_from_which_the_reset_one_follows() -> None:
    static = made_of(Base("lengths", "batch", None), [1, 9], [1, 9])
    other = made_of(Base("lengths", "batch", None), [1, 9], [1, 8])
    for one, name in ((static, "lengths"), (other, "slots")):
        replay = Replay("graph", "decode", 2, 2, [one], lambda: None)
        rerun: Any = SimpleNamespace(inputs=Saved([(one.tensor, one.tensor)]), replay=replay)
        (suspect,) = suspects_of(rerun, {})
        assert (suspect.cause["input"], suspect.live) == (name, True)
