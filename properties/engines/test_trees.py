"""The keys of draft tokens, from an engine's lists and mask, against what the reference lists."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paritybit.reference.batch import Mode, Span
from paritybit.reference.eager import columns_of
from paritybit.subjects.engines.sglang.model.trees import TreeBatch, TreeKeys, tree_keys

WINDOW = 8
BASE = 10_000
MOST = 48

Listed = list[list[tuple[int, bool]]]


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    """Return requests of some lengths with a tree of four drafts each."""
    found = []
    for row in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(1, 20))
        parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, 4))]
        tree = tuple((7, parent) for parent in parents)
        found.append(Span(row, row, begin, begin + 4, (), (), 0, 0, False, 0, tree))
    return found


def given_of(requests: list[Span], window: int | None) -> TreeBatch:
    """Return what an engine's kernel is given: token c of row r has slot 100 r + c."""
    begins = [span.begin for span in requests]
    kept = begins if window is None else [min(begin, window) for begin in begins]
    slots = [
        100 * span.row + column
        for span, count in zip(requests, kept, strict=True)
        for column in range(span.begin - count, span.begin)
    ]
    bits = [bit for span in requests for bit in span.tree_mask()]
    offsets = [begin - count for begin, count in zip(begins, kept, strict=True)]
    return TreeBatch(
        qo_indptr=torch.arange(len(requests) + 1) * 4,
        kv_indptr=torch.tensor([0, *kept]).cumsum(0).to(torch.int32),
        kv_indices=torch.tensor([*slots, 0, 0]),
        mask=torch.tensor([*bits, False]).to(torch.uint8),
        mask_indptr=torch.tensor([0, *(4 * (begin + 4) for begin in begins)]).cumsum(0),
        offsets=None if window is None else torch.tensor(offsets, dtype=torch.int32),
        drafts=4,
        window=window,
    )


def listed(keys: TreeKeys) -> Listed:
    """Return the slots that each token lists, and whether it sees them."""
    return [
        list(zip(keys.slots[b:e].tolist(), keys.mask[b:e].tolist(), strict=True))
        for b, e in zip(keys.begin.tolist(), keys.end.tolist(), strict=True)
    ]


def expected(requests: list[Span], window: int | None) -> Listed:
    """Return what the reference lists, with the slots of `given_of`."""
    return [
        [
            (100 * span.row + column, seen)
            if column < span.begin
            else (BASE + 4 * place + column - span.begin, seen)
            for column, seen in columns
        ]
        for place, span in enumerate(requests)
        for columns in columns_of(Mode.TARGET_VERIFY, span, window, 0)
    ]


@pytest.mark.parametrize("window", [None, WINDOW, 2])
@given(requests=spans())
def test_draft_tokens_list_what_the_reference_lists(
    window: int | None, requests: list[Span]
) -> None:
    keys = tree_keys(given_of(requests, window), 4 * len(requests), MOST, BASE)
    assert listed(keys) == expected(requests, window)


@pytest.mark.parametrize("name", ["mask_indptr", "offsets", "kv_indptr", "qo_indptr", "mask"])
@given(requests=spans())
def test_a_wrong_element_of_any_list_shows(name: str, requests: list[Span]) -> None:
    right = given_of(requests, WINDOW)
    wrong = getattr(right, name).clone()
    if name == "mask":  # The root's bit of its first draft, behind the root's own row.
        first = requests[0].begin
        wrong[first + 4 + first] = 0
    else:
        wrong[0] += 1
    other = tree_keys(replace(right, **{name: wrong}), 4 * len(requests), MOST, BASE)
    assert listed(other) != expected(requests, WINDOW)


@given(requests=spans())
def test_whatever_the_mask_of_a_padded_request_holds_others_are_not_touched(
    requests: list[Span],
) -> None:
    padded = [*requests, Span(99, 99, 1, 5, (), (), 0, 0, False, 0, ((0, -1),) * 4)]
    batch = given_of(padded, WINDOW)
    live = 4 * len(requests)
    assert batch.mask is not None and batch.mask_indptr is not None
    batch.mask[int(batch.mask_indptr[len(requests)]) :] = 0
    keys = listed(tree_keys(batch, live + 4, MOST, BASE))
    assert keys[:live] == expected(requests, WINDOW)
    assert all([seen for _, seen in row] == [True] + [False] * 4 for row in keys[live:])
