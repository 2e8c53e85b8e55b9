"""Attention kernels are compared with their stand-ins on a few calls."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paritybit.drive.stand_ins import layers, sampled
from paritybit.drive.stand_ins.attention import decode_attention, unbounded
from paritybit.watch import journal
from paritybit.watch.settings import VARIABLE, Settings


@pytest.mark.parametrize(("checks", "asked"), [(None, True), (("stray write",), False)])
def test_kernels_are_compared_where_all_checks_are_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checks: tuple[str, ...] | None,
    asked: bool,
) -> None:
    monkeypatch.setattr(journal, "_OPEN", [])
    monkeypatch.setenv(VARIABLE, Settings(str(tmp_path), checks).text())
    assert (sampled.asked() is not None) == asked


def call(keys: int) -> dict[str, Any]:
    """Return the arguments of a decode with one row that lists so many keys, and one with none."""
    return {
        "o": torch.ones(2, 3),
        "kv_indptr": torch.tensor([0, keys, keys]),
        "kv_indices": torch.arange(8),
        "k_buffer": torch.zeros(8, 1, 3),
    }


def writes(given: dict[str, Any], value: float, row: int = 0) -> None:
    given["o"][row] = value


@pytest.mark.parametrize(
    ("value", "row", "found"), [(1.0, 0, False), (1.00001, 0, False), (1.1, 0, True), (9, 1, False)]
)
def test_a_kernel_that_gives_other_values_for_a_live_row_is_found(
    lines: journal.Journal, value: float, row: int, found: bool
) -> None:
    given = call(4)
    sampled.Sampled(lines).compare("decode", given, lambda: writes(given, value, row))
    assert bool(lines.findings) == found
    assert lines.counts == {"tried: attention kernel": 1}
    assert given["o"].eq(1).all()


def test_a_kernel_that_gives_no_numbers_is_found(lines: journal.Journal) -> None:
    given = call(4)
    sampled.Sampled(lines).compare("decode", given, lambda: writes(given, math.nan))
    assert lines.findings
    given = {**call(5), "o": torch.full((2, 3), math.inf)}
    sampled.Sampled(lines).compare("decode", given, lambda: writes(given, math.nan))
    assert sum(lines.findings.values()) == 1


def test_a_kernel_that_cannot_be_interpreted_leaves_the_engine_alone(
    lines: journal.Journal,
) -> None:
    def kernel() -> None:
        given["o"][0] = 7
        raise IndexError

    given = call(4)
    sampled.Sampled(lines).compare("decode", given, kernel)
    assert given["o"].eq(1).all()
    assert not lines.findings
    assert any("kernels_not_compared" in text for text in lines.said)


def test_a_length_is_compared_once_and_within_a_share_of_the_time(lines: journal.Journal) -> None:
    once = sampled.Sampled(lines, begun=-1e6)
    for keys in (4, 4, 5, 0):
        given = call(keys)
        once.compare("decode", given, lambda: None)
    assert lines.counts == {"tried: attention kernel": 2}
    once.spent = 1e9
    once.compare("decode", call(6), lambda: None)
    assert lines.counts == {"tried: attention kernel": 2}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_indptr", [0, 9, 9]),
        ("kv_indptr", [0, 4, 3]),
        ("kv_indptr", [-1, 4, 4]),
        ("kv_indices", [0, 8, 1, 1]),
        ("kv_indices", [0, -1, 1, 1]),
    ],
)
def test_a_kernel_is_not_run_over_lists_that_lead_out_of_its_buffers(
    lines: journal.Journal, name: str, value: list[int]
) -> None:
    given = {**call(4), name: torch.tensor(value)}
    sampled.Sampled(lines, begun=-1e6).compare("decode", given, lambda: writes(given, 5.0))
    assert lines.counts == {}


def test_new_keys_count_where_a_kernel_takes_them_besides(lines: journal.Journal) -> None:
    given = {
        "o_extend": torch.ones(5, 2),
        "kv_indptr": torch.tensor([0, 0]),
        "kv_indices": torch.arange(8),
        "k_buffer": torch.zeros(8, 1, 2),
        "qo_indptr": torch.tensor([0, 4]),
    }

    def kernel() -> None:
        given["o_extend"][4] = 7

    one = sampled.Sampled(lines)
    one.compare(sampled.WITH_NEW_KEYS, given, kernel)
    assert one.seen == {(sampled.WITH_NEW_KEYS, 4)}
    assert not lines.findings


def test_a_kernel_reads_on_beyond_the_slice_that_it_is_given() -> None:
    assert unbounded(torch.arange(9)[2:4]).tolist() == list(range(2, 9))
    keys, query = torch.randn(8, 1, 4), torch.randn(1, 1, 4)
    entries: Tensor = torch.tensor([0, 3, 5, 6])
    outputs = torch.zeros(2, 1, 1, 4)
    for output, listed in zip(outputs, (entries[1:2], entries[1:].clone()), strict=True):
        decode_attention(query, keys, keys, output, torch.tensor([0, 3]), listed, 1.0)
    assert torch.equal(outputs[0], outputs[1])
    assert outputs.abs().sum() > 0


def hinted(
    o: Tensor, kv_indptr: Tensor, kv_indices: Tensor, k_buffer: Tensor, hint: Any = None
) -> None:
    """A kernel with one argument more than its stand-in; a negative hint changes its result."""
    o[0] = 3.0 if hint is None or hint >= 0 else 4.0


def stand_in(o: Tensor, kv_indptr: Tensor, kv_indices: Tensor, k_buffer: Tensor) -> None:
    o[0] = 3.0


def test_an_argument_that_a_stand_in_lacks_may_be_used_where_it_changes_nothing() -> None:
    called = layers.adapted(hinted, stand_in)
    for hint in (1, 2, None, 3, 4, -1):  # The last call is not compared any more.
        given = call(4)
        called(**given, hint=hint)
        assert given["o"][0].eq(3).all()


def test_an_argument_that_changes_what_a_kernel_computes_has_no_stand_in() -> None:
    called = layers.adapted(hinted, stand_in)
    called(**call(4))
    called(**call(0), hint=-1)  # Nothing is read, so nothing can be compared.
    with pytest.raises(NotImplementedError, match="attention with hint has no stand-in"):
        called(**call(4), hint=-1)


def test_a_later_difference_with_such_an_argument_is_no_finding(lines: journal.Journal) -> None:
    trial = sampled.Sampled(lines, begun=-1e6)
    for _ in range(sampled.PROVED):
        trial.compare("decode", call(4), lambda: None, frozenset("a"))
    given = call(5)
    with pytest.raises(NotImplementedError, match="attention with a has"):
        trial.compare("decode", given, lambda: writes(given, 5.0), frozenset("a"))
    assert not lines.findings
