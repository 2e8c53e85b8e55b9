"""Hidden states that a draft model gets are those that a model returned for the same positions."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.connectors.sglang.hidden import HiddenStates
from paritybit.connectors.sglang.models import Model
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.facts import Row
from properties.connectors import parts

TARGET = Model(None, drafts=False, runner=None)  # type: ignore[arg-type]
DRAFT = Model(None, drafts=True, ahead=True, runner=None)  # type: ignore[arg-type]

STATES = torch.arange(1.0, 15).view(7, 2)


def rows_of(*spans: tuple[str, int, int], branches: int = 1) -> Rows:
    """Return rows, each with the name of a request and its cached and computed positions."""
    found = Rows()
    for index, (request, cached, computed) in enumerate(spans):
        for _ in range(branches):
            found.add(index, Row(request, (), cached, computed, {}))
    return found


def batch_of(
    mode: str, states: Tensor | None = None, accepted: list[int] | None = None, **told: Any
) -> Any:
    """Return a batch with the hidden states that a draft gets, and how many tokens are accepted."""
    if accepted is not None:
        told["num_accept_tokens"] = torch.tensor(accepted)
    info = None if mode == "extend" and states is None else SimpleNamespace(**told)
    if info is not None:
        info.hidden_states = states
    return SimpleNamespace(forward_mode=parts.mode(mode), spec_info=info)


def result_of(states: Tensor | None) -> Any:
    """Return what the engine's models return."""
    return SimpleNamespace(logits_output=SimpleNamespace(hidden_states=states))


def judged(states: HiddenStates, model: Model, found: Rows, batch: Any) -> list[bool]:
    """Return for each state that is judged whether it is the right one."""
    right = []
    for static in states.given(model, found, batch):
        assert static.expected is not None
        right += (static.tensor == static.expected).all(1).tolist()
    return right


PROMPTS = rows_of(("a", 0, 4), ("b", 2, 3))


@pytest.fixture
def states() -> HiddenStates:
    """The states that a target returned for two prompts, in a buffer that is used again."""
    made, buffer = HiddenStates(), STATES.clone()
    made.note(TARGET, PROMPTS, batch_of("extend"), result_of(buffer))
    buffer.zero_()
    return made


@pytest.mark.parametrize(
    ("returned", "accepted", "right"),
    [
        (STATES, [2, 3, 9], [True, True]),  # One per token. A graph runner pads the numbers.
        (STATES[[1, 6]], [2, 3, 9], [True, True]),  # One per row.
        (STATES[[1, 6]], [2, 2, 9], [True]),
        (STATES[[1, 6]], None, []),
        (STATES[[6, 1]], [2, 3, 9], [False, False]),
        (STATES[:3], [2, 3, 9], []),
        (None, [2, 3, 9], []),
    ],
)
def test_steps_begin_with_the_state_of_the_last_accepted_token(
    states: HiddenStates, returned: Tensor | None, accepted: list[int] | None, right: list[bool]
) -> None:
    extended = batch_of("draft_extend_v2", STATES, accepted)
    states.note(DRAFT, PROMPTS, extended, result_of(returned))
    steps = rows_of(("a", 2, 3), ("b", 5, 3))
    given = STATES[[1, 6]]
    assert judged(states, DRAFT, steps, batch_of("decode", given)) == right
    states.note(DRAFT, steps, batch_of("decode", given), result_of(given.flip(0)))  # Of drafts.
    assert judged(states, DRAFT, steps, batch_of("decode", given)) == right
