"""The engine's view of a hybrid KV pool. The location scheme decides where SWA layers write.

The pool owns storage and mapping. This module keeps the Python state that the historical changes
affected: the persistent `swa_loc` and the one-entry memo.
"""

import logging
from dataclasses import dataclass, replace

import torch
from paritybit.reference.config import Kind
from paritybit.reference.ops import Ops
from paritybit.reference.pool import LOC_DTYPE, HybridKVPool
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

TRANSLATE = "translate_loc_from_full_to_swa"
"""The name of a translation in the list of captured ops."""


@dataclass(frozen=True)
class Memo:
    """A memoised translation: `loc` are the SWA slots of `source`.

    `source` is kept alive so that no other tensor gets its address. An accidental memo hit would
    make replays nondeterministic.
    """

    source: Tensor
    loc: Tensor

    @property
    def key(self) -> tuple[int, int]:
        """The address and the number of elements of `source`."""
        return self.source.data_ptr(), self.source.numel()


@dataclass(frozen=True)
class LocState:
    """Python state about write locations: `swa_loc` under PRESET, the memo under MEMO."""

    swa_loc: Tensor | None = None
    memo: Memo | None = None


class SubjectPool:
    """Reads and writes a `HybridKVPool` as the engine does under one location scheme."""

    def __init__(
        self, pool: HybridKVPool, ops: Ops, scheme: LocationScheme, logger: logging.Logger
    ) -> None:
        self.pool = pool
        self.ops = ops
        self.scheme = scheme
        self.logger = logger
        self.state = LocState()

    def set_swa_loc(self, loc: Tensor | None) -> None:
        """Preset the SWA write location (PRESET). It stays set until the next call."""
        self.state = replace(self.state, swa_loc=loc)

    def invalidate_loc_cache(self) -> None:
        """Clear the memoised translation (MEMO)."""
        if self.state.memo is not None:
            self.state = replace(self.state, memo=None)

    def translate_loc_from_full_to_swa(self, loc: Tensor) -> Tensor:
        """Return the SWA slots, int32, of the full slots `loc`, memoised under MEMO.

        The memo's key is (data_ptr, numel). A tensor that is rewritten in place keeps its key and
        silently gets the old translation. Two alternating tensors cause a warning each time.
        """
        if self.scheme is not LocationScheme.MEMO:
            return self._gather(loc)
        memo = self.state.memo
        if memo is not None:
            if memo.key == (loc.data_ptr(), loc.numel()):
                return memo.loc
            self.logger.warning(
                "loc changed mid-forward from %s elements to %s without invalidate_loc_cache();"
                " a call site may be missing",
                memo.key[1],
                loc.numel(),
            )
        translated = self._gather(loc)
        self.state = replace(self.state, memo=Memo(loc, translated))
        return translated

    def set_kv_buffer(self, layer: int, loc: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [T, G, D] of `layer` at the full slots `loc` or their SWA slots."""
        kind = self.pool.config.layers[layer]
        if kind is Kind.SWA:
            preset = self.state.swa_loc
            loc = preset if preset is not None else self.translate_loc_from_full_to_swa(loc)
        self.ops.store_kv(self.pool.caches[layer], loc, LOC_DTYPE[kind], key, value)

    def _gather(self, loc: Tensor) -> Tensor:
        self.ops.record(TRANSLATE)
        mapping = self.pool.full_to_swa_index_mapping
        # `take` is cheaper than indexing.
        return mapping.take(loc.to(torch.int64)).to(torch.int32)
