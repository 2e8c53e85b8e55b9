"""The engine's own hybrid pool, allocator and request table, filled the way ours is."""

import torch
from torch import Tensor

from reference.config import Kind, ModelConfig
from reference.pool import PoolSizes, fill_with_garbage
from subjects.engines.sglang.loading import Engine, named


class ReleasedPool:
    """The engine's `SWAKVPool`, its allocator and its `ReqToTokenPool`, for one model."""

    def __init__(
        self,
        engine: Engine,
        config: ModelConfig,
        sizes: PoolSizes,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.config = config
        self.sizes = sizes
        self.device = device
        shapes = {kind: config.shape(kind) for kind in Kind}
        self.kv = named(
            engine.part("srt.mem_cache.swa_memory_pool:SWAKVPool"), enable_kvcache_transpose=False
        )(
            size=sizes.full_slots,
            size_swa=sizes.swa_slots,
            page_size=sizes.page_size,
            dtype=dtype,
            head_num=shapes[Kind.FULL].kv_heads,
            head_dim=shapes[Kind.FULL].head_dim,
            swa_head_num=shapes[Kind.SWA].kv_heads,
            swa_head_dim=shapes[Kind.SWA].head_dim,
            swa_v_head_dim=shapes[Kind.SWA].head_dim,
            v_head_dim=shapes[Kind.FULL].head_dim,
            swa_attention_layer_ids=list(config.layers_of(Kind.SWA)),
            full_attention_layer_ids=list(config.layers_of(Kind.FULL)),
            device=device,
        )
        self.allocator = engine.part(
            "srt.mem_cache.swa_memory_pool:SWATokenToKVPoolAllocator",
            "srt.mem_cache.allocator.swa:SWATokenToKVPoolAllocator",
        )(
            size=sizes.full_slots,
            size_swa=sizes.swa_slots,
            page_size=sizes.page_size,
            dtype=dtype,
            device=device,
            kvcache=self.kv,
            need_sort=False,
        )
        self.requests = engine.part("srt.mem_cache.memory_pool:ReqToTokenPool")(
            size=sizes.rows,
            max_context_len=config.max_context,
            device=device,
            enable_memory_saver=False,
        )

    def reset(self, seed: int) -> None:
        """Own nothing; fill K and V of every layer with finite garbage drawn from `seed`."""
        self.allocator.clear()
        self.requests.clear()
        self.requests.req_to_token.zero_()
        for place, buffer in enumerate(self.storages()):
            fill_with_garbage(buffer, seed * 1000 + place)

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of a layer, each [slots, kv_heads, head_dim]."""
        found: tuple[Tensor, Tensor] = self.kv.get_kv_buffer(layer)
        return found

    def storages(self) -> list[Tensor]:
        """Return K and V of all layers, in order."""
        layers = range(len(self.config.layers))
        return [part for layer in layers for part in self.keys_and_values(layer)]

    def translate(self, loc: Tensor) -> Tensor:
        """Return the SWA slots of full slots, as the engine finds them, in its dtype."""
        found: Tensor = self.kv.translate_loc_from_full_to_swa(loc)
        return found

    def slots(self, layer: int, loc: Tensor) -> Tensor:
        """Return the slots, int64, that full slots have in a layer's own sub-pool."""
        loc = loc.to(torch.int64)
        if self.config.layers[layer] is Kind.FULL:
            return loc
        return self.translate(loc).to(torch.int64)

    def extend(self, row: int, held: int, count: int) -> Tensor:
        """Give the request of `row`, which holds `held` tokens, slots for `count` more."""
        table = self.requests.req_to_token
        end = held + count
        if self.sizes.page_size == 1:
            slots = self.allocator.alloc(count)
        else:
            last = table[row, held - 1] if held else torch.tensor(-1)
            slots = self.allocator.alloc_extend(
                prefix_lens=torch.tensor([held], device=self.device),
                prefix_lens_cpu=torch.tensor([held]),
                seq_lens=torch.tensor([end], device=self.device),
                seq_lens_cpu=torch.tensor([end]),
                last_loc=last.to(self.device, torch.int64)[None],
                extend_num_tokens=count,
            )
        if slots is None:
            raise RuntimeError("the engine's allocator has no room where ours has")
        table[row, held:end] = slots.to(torch.int32)
        found: Tensor = table[row, held:end].to(torch.int64)
        return found

    def held(self, row: int, begin: int, end: int) -> Tensor:
        """Return the full slots, int64, of tokens begin .. end-1 of a request."""
        found: Tensor = self.requests.req_to_token[row, begin:end].to(torch.int64)
        return found

    def evict(self, row: int, begin: int, end: int) -> None:
        """Free the SWA slots of tokens begin .. end-1 of a request."""
        self.allocator.free_swa(self.held(row, begin, end))

    def free(self, row: int, count: int, evicted: int) -> None:
        """Take back the slots of a request of `count` tokens, the first of which were evicted."""
        whole = evicted
        if hasattr(self.allocator, "free_full"):  # It wants each SWA slot freed once.
            self.allocator.free_full(self.held(row, 0, evicted))
        else:
            whole = 0
        self.allocator.free(self.held(row, whole, count))
