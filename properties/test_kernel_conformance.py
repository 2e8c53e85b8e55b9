"""Every op set keeps the contracts of the op interface, and every check of that can fail.

Knows which op set runs where: torch on the CPU; Triton compiled on CUDA, or else
interpreted in a process of its own. Does not know what is checked: see `op_checks`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from properties.op_checks import (
    ALL,
    CHECKS,
    CONFIGS,
    FEW,
    Check,
    Trial,
    check_batch_invariance,
    check_conformance,
    check_highest_row_wins,
    check_loc_is_reinterpreted,
    check_row_limit,
    check_rows_without_keys_are_zero,
    check_unlisted_slots_are_not_loaded,
    run_checks,
)
from reference.config import ModelConfig
from reference.ops import Ops
from reference.torch_ops import TorchOps

ROOT = Path(__file__).parent.parent


class LargeBatchesDrift(TorchOps):
    """A product whose rows depend on how many there are."""

    def _linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        return super()._linear_add(inputs, weight, residual) + 1e-3 * inputs.shape[0]


class OneRowIsFused(TorchOps):
    """A product that takes another route for one row, right within any bound."""

    def _norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        result = super()._norm_linear(hidden, norm, weight)
        return result.nextafter(result.new_zeros(())) if result.shape[0] == 1 else result


class ProductsLoseBits(TorchOps):
    """A product whose inputs lose bits first, as in tf32."""

    def _linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        return super()._linear_add(inputs.half().to(inputs.dtype), weight, residual)


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
        self,
        query: Tensor,
        cache: Tensor,
        indptr: Tensor,
        slots: Tensor,
        sinks: Tensor | None,
        max_keys: int,
    ) -> Tensor:
        result = super()._attention(query, cache, indptr, slots, sinks, max_keys)
        return result + 0.0 * cache.sum()


class RowsWithoutKeysAttendToOne(TorchOps):
    """Attention that reads at least one key for every row."""

    def _attention(
        self,
        query: Tensor,
        cache: Tensor,
        indptr: Tensor,
        slots: Tensor,
        sinks: Tensor | None,
        max_keys: int,
    ) -> Tensor:
        indptr = torch.cat([indptr[:-1], torch.maximum(indptr[-1:], indptr[-2:-1] + 1)])
        return super()._attention(query, cache, indptr, slots, sinks, max_keys)


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


FAULTS: list[tuple[type[Ops], Check]] = [
    (LargeBatchesDrift, check_conformance),
    (LargeBatchesDrift, check_batch_invariance),
    (OneRowIsFused, check_batch_invariance),
    (ProductsLoseBits, check_conformance),
    (RotaryIsNan, check_conformance),
    (LowestRowWins, check_highest_row_wins),
    (LocIsConverted, check_loc_is_reinterpreted),
    (UnlistedSlotsAreMultiplied, check_unlisted_slots_are_not_loaded),
    (RowsWithoutKeysAttendToOne, check_rows_without_keys_are_zero),
    (LimitIsIgnored, check_row_limit),
]


@pytest.mark.parametrize(
    ("check", "config", "dtype"),
    ALL,
    ids=[f"{check.__name__}-{config.name}-{dtype}" for check, config, dtype in ALL],
)
def test_torch_ops_keep_every_contract(
    check: Check, config: ModelConfig, dtype: torch.dtype
) -> None:
    """The CPU's op set passes each check."""
    check(Trial(TorchOps(), "cpu", config, dtype))


def test_triton_ops_keep_every_contract(device: str) -> None:
    """The GPU's op set passes each check: compiled where CUDA is, else interpreted."""
    if device == "cuda":
        from reference.triton_ops import TritonOps  # noqa: PLC0415 - not without CUDA

        assert run_checks(TritonOps(), device) == len(ALL)
        return
    # Triton decides at import whether it interprets: hence a process of its own.
    process = subprocess.run(
        [sys.executable, "-m", "properties.op_checks"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) == len(FEW) > 0


@pytest.mark.parametrize(
    ("faulty", "check"),
    FAULTS,
    ids=[f"{faulty.__name__}-{check.__name__}" for faulty, check in FAULTS],
)
def test_a_faulty_op_set_fails_its_check(faulty: type[Ops], check: Check) -> None:
    """A check that cannot fail proves nothing."""
    with pytest.raises(AssertionError):
        check(Trial(faulty(), "cpu", CONFIGS[0], torch.float32))


def test_every_check_has_a_fault_that_it_finds() -> None:
    """A new check comes with an op set that fails it."""
    assert {check for _, check in FAULTS} == set(CHECKS)
