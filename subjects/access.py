"""KV access of a subject's forward: store through the engine's pool, read by key lists."""

from torch import Tensor

from reference.config import Kind
from reference.model import Model
from reference.ops import Ops
from subjects.metadata import KeyLists
from subjects.pool import SubjectPool


class ListedKV:
    """Stores at `out_cache_loc` by the pool's era; attends to the rows' key lists."""

    def __init__(
        self, ops: Ops, model: Model, pool: SubjectPool, out_cache_loc: Tensor, lists: KeyLists
    ) -> None:
        self.ops = ops
        self.model = model
        self.pool = pool
        self.out_cache_loc = out_cache_loc
        self.lists = lists

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store, then attend: full layers over the whole prefix, SWA layers over the window."""
        config = self.model.config
        self.pool.set_kv_buffer(layer, self.out_cache_loc, key, value)
        if config.layers[layer] is Kind.SWA:
            indptr, slots = self.lists.window_kv_indptr, self.lists.window_kv_indices
            max_keys = config.window
        else:
            indptr, slots = self.lists.kv_indptr, self.lists.kv_indices
            max_keys = config.max_context
        cache = self.pool.pool.cache(layer)
        sinks = self.model.layers[layer].sinks
        return self.ops.attention(query, cache, indptr, slots, sinks, max_keys)
