"""Key lists of the subject, beyond what every clean trial reads: on a GPU, and too long a list."""

import pytest
import torch
from paritybit.subjects.listing import host

from properties.support.subjects.listings import (
    check_any_stride,
    check_drafts,
    check_listings,
    check_paths,
    check_tables,
    check_too_many_are_none,
    check_translations,
)


def test_a_gpu_lists_what_a_cpu_lists(device: str) -> None:
    """By its kernels."""
    if device != "cuda":
        pytest.skip("without a GPU these kernels are interpreted, in test_ops")
    from paritybit.reference.kernels import tables  # noqa: PLC0415 - not without CUDA
    from paritybit.subjects.listing import device as on_device  # noqa: PLC0415 - likewise
    from paritybit.subjects.listing import drafts, paths  # noqa: PLC0415 - likewise

    check_listings(on_device, device)
    check_any_stride(on_device, device)
    check_too_many_are_none(on_device, device)
    check_translations(on_device, device)
    check_tables(tables, device)
    check_drafts(drafts, device)
    check_paths(paths, device)


def test_more_keys_than_there_are_cannot_be_listed() -> None:
    """What the host counts says how many: a count that is too high is no list of junk."""
    table = torch.arange(8, dtype=torch.int32).view(2, 4)
    rows, seq_lens = torch.tensor([0, 1]), torch.tensor([3, 2])
    assert host.list_rows(rows, seq_lens, (5, 2), 1, table, None)["kv_indices"].shape == (5,)
    for totals in ((6, 2), (5, 3)):
        with pytest.raises(IndexError):
            host.list_rows(rows, seq_lens, totals, 1, table, None)
