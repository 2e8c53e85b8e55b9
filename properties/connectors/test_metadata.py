"""What backends hand to kernels besides lists is compared with what the rows imply."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paritybit.connectors.following import expected
from paritybit.connectors.sglang.attention import metadata_of
from paritybit.connectors.sglang.rows import Rows
from paritybit.watch.checks import stale_input
from paritybit.watch.facts import Forward, Row, StaticInput
from paritybit.watch.observations import Inputs

WINDOW = 3


def backend(kind: str, **attributes: Any) -> Any:
    return type(kind, (SimpleNamespace,), {})(sliding_window_size=WINDOW, **attributes)


def rows(*spans: tuple[int, int]) -> Rows:
    found = Rows()
    for index, (cached, computed) in enumerate(spans):
        found.add(index, Row("a", [1] * (cached + computed), cached, computed, {}))
    return found


def chain(count: int) -> Any:
    """Return a batch that verifies so many draft tokens without branches."""
    return SimpleNamespace(spec_info=SimpleNamespace(topk=1, draft_token_num=count))


def stale(inputs: list[StaticInput]) -> list[str]:
    """Return the names of the inputs that hold something else than is implied."""
    found = Inputs(1, Forward("decode", ()), "b", inputs, {})
    return [str(finding.cause["input"]) for finding in stale_input.judge(found) if finding.cause]


VERIFIES = {
    "qo_indptr": [0, 2, 4, 99],
    "mask_indptr": [0, 8, 22, 99],
    "window_kv_offsets": [0, 2, 99],
}
"""What is right for two requests with 2 and 5 cached keys and two draft tokens each, then padding.
"""


def verified(graph: bool, **changed: list[int]) -> list[StaticInput]:
    held = {name: torch.tensor(value) for name, value in {**VERIFIES, **changed}.items()}
    meta = SimpleNamespace() if graph else SimpleNamespace(**held)
    own = {**held, **{f"cuda_graph_{name}": held[name] for name in held}} if graph else {}
    given = backend("TritonAttnBackend", forward_metadata=meta, **own)
    found = rows((2, 2), (5, 2))
    return list(metadata_of(given, "target_verify", chain(2), found, graph))


@pytest.mark.parametrize("graph", [False, True])
def test_what_a_verification_is_given_is_compared(graph: bool) -> None:
    assert {one.name for one in verified(graph)} == set(VERIFIES)
    assert not stale(verified(graph))
    for name, value in VERIFIES.items():
        wrong = [value[0], value[1] + 1, *value[2:]]
        assert stale(verified(graph, **{name: wrong})) == [name]


@pytest.mark.parametrize(("size", "right"), [(3, True), (4, True), (2, False), (None, True)])
def test_the_grid_covers_the_longest_prompt(size: int | None, right: bool) -> None:
    given = backend("TritonAttnBackend", forward_metadata=SimpleNamespace(max_extend_len=size))
    spans = rows((0, 1), (4, 3))
    inputs = list(metadata_of(given, "extend", SimpleNamespace(), spans, graph=False))
    assert stale(inputs) == ([] if right else ["max_extend_len"])


@pytest.mark.parametrize(
    ("mode", "topk", "lengths"), [("decode", 1, [4]), ("target_verify", 1, [5]),
                                  ("target_verify", 2, [3])]
)  # fmt: skip
def test_the_lengths_of_flash_attention_are_exact(mode: str, topk: int, lengths: list[int]) -> None:
    for held, found in ((lengths, []), ([lengths[0] + 1], ["cache_seqlens_int32"])):
        meta = SimpleNamespace(cache_seqlens_int32=torch.tensor(held))
        given = backend("FlashAttentionBackend", forward_metadata=meta, topk=topk)
        assert stale(list(metadata_of(given, mode, chain(2), rows((3, 1)), graph=True))) == found


def test_an_input_has_no_more_entries_than_its_values_unless_padding_follows() -> None:
    whole, padded = (expected("drafts", torch.tensor([1, 2, 3]), [1, 2], size=n) for n in (None, 3))
    inputs: Any = SimpleNamespace(inputs=[whole, padded], finding=lambda _, one, what: (one, what))
    found: list[Any] = [*stale_input.judge(inputs)]
    assert found == [(whole, "drafts has [3] live, not [2]")]
