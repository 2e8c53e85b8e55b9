"""Every op set keeps the contracts of the op interface, and every check of that can fail.

Knows which op set runs where: torch on the CPU; Triton compiled on CUDA, or else
interpreted in a process of its own. Does not know what is checked: see `op_checks`.
"""

import pytest
import torch
from paritybit.reference.ops import ListedKeys, Ops, Paths, Reused
from paritybit.reference.torch_ops import TorchOps
from torch import Tensor

from properties.support.interpreting import run_interpreted
from properties.support.subjects.op_checks import (
    ALL,
    CHECKS,
    CONFIGS,
    FEW,
    Check,
    OpTrial,
    check_batch_invariance,
    check_conformance,
    check_form_of_lists_changes_no_bit,
    check_highest_row_of_a_table_wins,
    check_highest_row_wins,
    check_largest,
    check_loc_is_reinterpreted,
    check_only_keys_are_loaded,
    check_row_limit,
    check_rows_without_keys_are_zero,
    check_states_follow_paths,
    check_what_is_reused_is_of_the_same_lists,
    run_checks,
)


class OneRowIsFused(TorchOps):
    """A product that takes another route for one row, right within any bound."""

    def _norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        result = super()._norm_linear(hidden, norm, weight)
        return result.nextafter(result.new_zeros(())) if result.shape[0] == 1 else result


class ProductsLoseBits(TorchOps):
    """A product whose inputs lose bits first, as in tf32."""

    def _linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        return super()._linear_add(inputs.half().to(inputs.dtype), weight, residual)


class ParentsAreIgnored(TorchOps):
    """A scan whose tokens all begin with what lies in the pool."""

    def _scan_states(
        self, states: Tensor, paths: Paths, table: Tensor, input_ids: Tensor, decay: Tensor
    ) -> Tensor:
        alone = paths._replace(parents=torch.full_like(paths.parents, -1))
        return super()._scan_states(states, alone, table, input_ids, decay)


class NothingIsMultiplied(TorchOps):
    """A scan that loads a state where there is none, and gives it the weight zero."""

    def _scan_states(
        self, states: Tensor, paths: Paths, table: Tensor, input_ids: Tensor, decay: Tensor
    ) -> Tensor:
        result = super()._scan_states(states, paths, table, input_ids, decay)
        return result + 0.0 * states.sum()


class LowestRowOfTableWins(TorchOps):
    """A store into a table that resolves duplicates the wrong way round."""

    def _store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        super()._store_rows(table, rows.flip(0), values.flip(0))


class RotaryIsNan(TorchOps):
    """An op that gives NaN, which no comparison with a bound may let pass."""

    def _rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        return super()._rotary(positions, section, frequency) * torch.nan


class LowestRowWins(TorchOps):
    """A store that resolves duplicates the wrong way round."""

    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None:
        super()._store_kv(cache, loc.flip(0), key.flip(0), value.flip(0))


class LocIsConverted(TorchOps):
    """A store that converts a loc of another dtype, which hides a broken ABI."""

    def store_kv(
        self, cache: Tensor, loc: Tensor, loc_dtype: torch.dtype, key: Tensor, value: Tensor
    ) -> None:
        """Store by values of `loc`, whatever its dtype."""
        super().store_kv(cache, loc.to(loc_dtype), loc_dtype, key, value)


class UnlistedSlotsAreMultiplied(TorchOps):
    """Attention that gives unlisted slots the weight zero, and so lets NaN through."""

    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None, reused: Reused
    ) -> Tensor:
        result = super()._attention(query, cache, keys, sinks, reused)
        return result + 0.0 * cache.sum()


class MaskIsIgnored(TorchOps):
    """Attention to every listed key, as if a tree were a chain."""

    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None, reused: Reused
    ) -> Tensor:
        unmasked = keys._replace(mask=None, mask_start=None)
        return super()._attention(query, cache, unmasked, sinks, reused)


class MaskedAttentionIsAnotherKernel(TorchOps):
    """Attention that takes another route for a mask, right within any bound."""

    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None, reused: Reused
    ) -> Tensor:
        result = super()._attention(query, cache, keys, sinks, reused)
        return result if keys.mask is None else result.nextafter(result.new_zeros(()))


class ListsOfTheFirstLayerStay(TorchOps):
    """Attention of later layers by what the first one made, whatever their lists are."""

    def _attention(
        self, query: Tensor, cache: Tensor, keys: ListedKeys, sinks: Tensor | None, reused: Reused
    ) -> Tensor:
        if reused.given:
            keys = ListedKeys(*reused.given[: len(keys)])
        return super()._attention(query, cache, keys, sinks, reused)


class LimitIsIgnored(TorchOps):
    """Experts that work on every row."""

    def _gated_linear_add(
        self,
        gate_up: Tensor,
        weight: Tensor,
        residual: Tensor,
        activation: str,
        row_limit: Tensor,
    ) -> Tensor:
        unlimited = torch.full_like(row_limit, residual.shape[0])
        return super()._gated_linear_add(gate_up, weight, residual, activation, unlimited)


class HighestPlaceWins(TorchOps):
    """Largest values whose ties go the wrong way round."""

    def largest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Rank the reversed rows."""
        found, places = super().largest(values.flip(-1), count)
        return found, values.shape[1] - 1 - places


class PlacesRepeat(TorchOps):
    """Largest values that strike a place by -inf, and find it again where all are."""

    def largest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Rank finite values alone."""
        found, places = super().largest(values, count)
        return found, places.where(found.isfinite(), 0)


FAULTS: list[tuple[type[Ops], Check]] = [
    (OneRowIsFused, check_batch_invariance),
    (ProductsLoseBits, check_conformance),
    (RotaryIsNan, check_conformance),
    (LowestRowWins, check_highest_row_wins),
    (LocIsConverted, check_loc_is_reinterpreted),
    (ParentsAreIgnored, check_states_follow_paths),
    (NothingIsMultiplied, check_states_follow_paths),
    (LowestRowOfTableWins, check_highest_row_of_a_table_wins),
    (UnlistedSlotsAreMultiplied, check_only_keys_are_loaded),
    (MaskIsIgnored, check_rows_without_keys_are_zero),
    (MaskedAttentionIsAnotherKernel, check_form_of_lists_changes_no_bit),
    (ListsOfTheFirstLayerStay, check_what_is_reused_is_of_the_same_lists),
    (HighestPlaceWins, check_largest),
    (PlacesRepeat, check_largest),
    (LimitIsIgnored, check_row_limit),
]


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_torch_ops_keep_every_contract(check: Check) -> None:
    """The CPU's op set passes each check at all models' widths, in both dtypes."""
    run_checks(
        TorchOps(), "cpu", tuple(combination for combination in ALL if combination[0] is check)
    )


@pytest.mark.parametrize("max_keys", [12, 15, 16, 17])
@pytest.mark.parametrize("sunk", [False, True])
def test_a_cpu_reads_no_key_beyond_the_most_that_a_row_may_have(
    max_keys: int, *, sunk: bool
) -> None:
    """Scores are made of whole vectors, in which further keys and the sink have room."""
    generator = torch.Generator().manual_seed(0)
    query, cache = (torch.randn(shape, generator=generator) for shape in ((3, 4, 8), (2, 40, 2, 8)))
    slots = torch.randperm(40, generator=generator)
    sinks = torch.randn(4, generator=generator) if sunk else None
    begin = torch.tensor([0, 3, 7])
    given = TorchOps().attention(query, cache, begin, begin + max_keys, slots, sinks, max_keys)
    longer = TorchOps().attention(query, cache, begin, begin + 30, slots, sinks, max_keys)
    assert longer.equal(given)
    for row, first in enumerate(begin.tolist()):
        keys, values = cache[:, slots[first : first + max_keys]].repeat_interleave(2, 2).unbind()
        score = torch.einsum("hd,khd->hk", query[row], keys) * 8**-0.5
        if sinks is not None:
            score = torch.cat([score, sinks[:, None]], 1)
        weight = score.softmax(-1)[:, :max_keys]
        torch.testing.assert_close(given[row], torch.einsum("hk,khd->hd", weight, values))


def test_triton_ops_keep_every_contract(device: str) -> None:
    """The GPU's op set passes each check: compiled where CUDA is, else interpreted."""
    if device == "cuda":
        from paritybit.reference.triton_ops import TritonOps  # noqa: PLC0415 - not without CUDA

        run_checks(TritonOps(), device)
        return
    process = run_interpreted("properties.support.subjects.op_checks")
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) == len(FEW) > 0


@pytest.mark.parametrize(
    ("faulty", "check"),
    FAULTS,
    ids=[f"{faulty.__name__}-{check.__name__}" for faulty, check in FAULTS],
)
def test_a_faulty_op_set_fails_its_check(faulty: type[Ops], check: Check) -> None:
    """A check that cannot fail proves nothing. Nor may it with the interpreter's few rows."""
    for interpreted in (False, True):
        with pytest.raises(AssertionError):
            check(OpTrial(faulty(), "cpu", CONFIGS[0], torch.float32, interpreted))


def test_every_check_has_a_fault_that_it_finds() -> None:
    """A new check comes with an op set that fails it."""
    assert {check for _, check in FAULTS} == set(CHECKS)


def test_what_a_kernel_reads_from_its_first_byte_on_must_lie_together() -> None:
    """A view of one element that is repeated has the right shape, and a kernel reads beyond it."""
    ops, rows = TorchOps(), torch.zeros(3, 4)
    right, wrong = torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64).expand(3)
    cache, query = torch.zeros(2, 5, 1, 4), torch.zeros(3, 1, 4)

    def refused(run: object, *words: object) -> None:
        assert callable(run)
        with pytest.raises(ValueError, match=r"of shape \[3\] that is not contiguous"):
            run(*words)

    refused(ops.payload, rows, right.bool(), rows, wrong)
    refused(ops.scan_states, rows, right, wrong, 1, rows, right, rows[0])
    refused(ops.store_rows, rows, wrong, rows)
    refused(ops.store_kv, cache, wrong, torch.int64, query, query)
    refused(ops.attention, query, cache, right, wrong, right, None, 1)
