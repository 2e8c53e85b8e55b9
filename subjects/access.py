"""KV access of a subject's forward: stores through the engine's pool, reads by key lists."""

from collections.abc import Mapping

from paritybit.reference.config import Kind
from paritybit.reference.model import Decoder, most_keys
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.protocol import KeyLists
from torch import Tensor


class ListedKV:
    """Stores KV at `out_cache_loc` and attends to the keys of the tokens' key lists.

    The pool's location scheme decides where SWA layers store. Without `out_cache_loc` nothing is
    stored. `borrowed` maps a layer of the model to the layer that it reads in another model's pool.
    """

    def __init__(
        self,
        model: Decoder,
        pool: SubjectPool,
        out_cache_loc: Tensor | None,
        lists: KeyLists,
        borrowed: Mapping[int, int] | None = None,
    ) -> None:
        self.model = model
        self.pool = pool
        self.out_cache_loc = out_cache_loc
        self.lists = lists
        self.borrowed = borrowed or {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store KV, then return the attention output [T, H, D].

        Full layers attend to the whole prefix, SWA layers to the window.
        """
        config = self.model.config
        kind = config.layers[layer]
        if self.out_cache_loc is not None:
            self.pool.set_kv_buffer(layer, self.out_cache_loc, key, value)
        keys = self.lists.swa if kind is Kind.SWA else self.lists.full
        return self.pool.ops.attention(
            query,
            self.pool.pool.caches[self.borrowed.get(layer, layer)],
            keys.begin,
            keys.end,
            keys.slots,
            most_keys(config, kind),
        )
