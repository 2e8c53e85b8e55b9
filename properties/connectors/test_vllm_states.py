"""The states of vLLM's recurrent layers under drafts."""

from collections.abc import Sequence

import pytest
import torch

from paritybit.connectors.vllm.pools import States, VllmPool
from paritybit.connectors.vllm.requests import Request
from paritybit.connectors.vllm.states import VllmStates
from paritybit.watch.facts import Group, Layer, Row, same
from properties.connectors.parts import Part

PAGE, DRAFTS, BLOCKS, KEPT = 8, 3, 12, 2

TABLE = [5, 2, 7, 4, 9]


class Rows:
    """One request, whose forwards leave the states after their tokens as the engine does.

    `number` stands for the state after so many tokens: all of it has this value.
    """

    def __init__(self) -> None:
        self.steps = torch.zeros(BLOCKS, 3)
        self.inputs = torch.zeros(BLOCKS, KEPT + DRAFTS, 2)
        parts = [self.steps, *(self.inputs[:, at : at + KEPT] for at in range(1 + DRAFTS))]
        whole, *windows = (Group("states", (Layer("net", (one,)),)) for one in parts)
        states = States(0, "net", PAGE, DRAFTS, whole, tuple(windows))
        pool = VllmPool((), PAGE, (), states=(states,))
        self.states = VllmStates(pool)
        self.request = Request([TABLE], 0)

    def wrong(
        self,
        cached: int,
        computed: int,
        accepted: int | None = 1,
        *,
        indices: Sequence[int] = (),
        request: Request | None = None,
    ) -> set[str]:
        """Run a forward. Returns the names of the wrong inputs. Without `accepted`, a prompt's."""
        request = self.request if request is None else request
        end, drafted = cached + computed, accepted is not None
        first = (end - 1) // PAGE
        blocks = request.blocks[0][first:]
        table = torch.tensor([indices or blocks[: 1 + DRAFTS]])
        given = Part(
            num_decodes=0,
            spec_sequence_masks_cpu=torch.tensor([drafted]),
            spec_state_indices_tensor=table,
            non_spec_state_indices_tensor=table[:, 0],
            num_accepted_tokens=torch.tensor([accepted] if drafted else []),
            has_initial_state=torch.tensor([cached > 0]),
        )
        row = Row("a", [*range(end)], cached, computed, {})
        judged = list(self.states.begin([(request, row)], {"net": given}))
        steps = range(computed if drafted else 1)
        for step in steps:
            self.steps[blocks[step]] = float(end - len(steps) + 1 + step)
        for at in range(KEPT - 1 + len(steps)):
            self.inputs[blocks[0], at] = float(end - len(steps) - KEPT + 1 + at)
        self.states.end()
        return {one.name for one in judged if not same(one.tensor, one.expected)}


@pytest.fixture
def rows() -> Rows:
    rows = Rows()
    assert rows.wrong(0, 4, None) == set()
    assert rows.wrong(4, 3) == set()
    return rows


@pytest.mark.parametrize(
    ("cached", "accepted", "found"),
    [
        (5, 1, set[str]()),
        (6, 2, set[str]()),
        (7, 3, set[str]()),
        (6, 1, {"states"}),  # The state after a token too few.
        (6, 3, {"states"}),  # It also has a rejected draft.
        (6, 5, {"states"}),  # There is none.
    ],
)
def test_a_row_goes_on_from_the_state_after_its_last_accepted_draft(
    rows: Rows, cached: int, accepted: int, found: set[str]
) -> None:
    assert rows.wrong(cached, 1, accepted) == found


def test_kernels_get_the_blocks_of_drafts(rows: Rows) -> None:
    other = [TABLE[0], TABLE[4], *TABLE[2:4]]
    assert rows.wrong(6, 1, 2, indices=other) == {"spec_state_indices_tensor 0"}


@pytest.mark.parametrize("part", ["both", "steps", "inputs"])
def test_a_state_is_copied_to_the_next_block(rows: Rows, part: str) -> None:
    """The state after six tokens is in the second block, and its inputs in the first one."""
    if part != "steps":
        rows.inputs[TABLE[1], :KEPT] = rows.inputs[TABLE[0], 1 : 1 + KEPT].clone()
    if part == "inputs":
        rows.steps[TABLE[1]] = rows.steps[TABLE[0]]
    assert rows.wrong(6, 3) == (set() if part == "both" else {"states"})


@pytest.mark.parametrize(("value", "found"), [(8, set[str]()), (9, {"states"})])
def test_a_prompt_goes_on_from_a_state_that_drafts_have_left(
    rows: Rows, value: int, found: set[str]
) -> None:
    rows.inputs[TABLE[1], :KEPT] = rows.inputs[TABLE[0], 1 : 1 + KEPT].clone()
    assert rows.wrong(6, 3) == set()
    rows.steps[10] = float(value)
    rows.inputs[10, :KEPT] = torch.tensor([[6.0], [7.0]])
    assert rows.wrong(8, 2, None, request=Request([[11, 10]], 8)) == found


@pytest.mark.parametrize(("accepted", "found"), [(2, set[str]()), (1, {"states"})])
def test_metadata_of_mamba2_count_padded_rows_as_decodes(
    rows: Rows, accepted: int, found: set[str]
) -> None:
    given = Part(
        num_decodes=2,
        state_indices_tensor_d=torch.tensor([TABLE[: 1 + DRAFTS], [0] * (1 + DRAFTS)]),
        num_accepted_tokens=torch.tensor([accepted, 1]),
    )
    row = Row("a", [*range(8)], 6, 2, {})
    judged = rows.states.begin([(rows.request, row)], {"net": given})
    assert {one.name for one in judged if not same(one.tensor, one.expected)} == found
