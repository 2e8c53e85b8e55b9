"""The engine's own hybrid pool, allocator and request table, filled the way ours is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from reference.config import Kind, ModelConfig
from reference.pool import PoolSizes
from reference.state_pool import StatePool
from subjects.engines.sglang.loading import Engine, named


class SglangPool:
    """The engine's `SWAKVPool`, its allocator and its `ReqToTokenPool`, for one model.

    `states` are the world's, which our arithmetic reaches by the engine's state indices; None
    where no request has any.
    """

    def __init__(
        self,
        engine: Engine,
        config: ModelConfig,
        sizes: PoolSizes,
        dtype: torch.dtype,
        device: str,
        states: StatePool | None = None,
    ) -> None:
        self.config = config
        self.states = states
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

    def clear(self) -> None:
        """Own nothing."""
        self.allocator.clear()
        self.requests.clear()
        self.requests.req_to_token.zero_()

    @contextmanager
    def stored_dtypes(self) -> Iterator[set[torch.dtype]]:
        """Collect the dtypes of the locations that the SWA sub-pool's store is given."""
        swa, found = self.kv.swa_kv_pool, set[torch.dtype]()
        store = swa.set_kv_buffer

        def watched(layer: object, loc: object, *arguments: object, **by_name: object) -> None:
            parts = [loc] if isinstance(loc, Tensor) else list(vars(loc).values())
            found.update(part.dtype for part in parts if isinstance(part, Tensor))
            store(layer, loc, *arguments, **by_name)

        swa.set_kv_buffer = watched
        try:
            yield found
        finally:
            swa.set_kv_buffer = store

    @property
    def preset_locations(self) -> Tensor | None:
        """The SWA write locations preset for stores to come; None where there are none."""
        found: Tensor | None = getattr(self.kv, "swa_loc", None)
        return found

    def preset(self, loc: Tensor | None) -> None:
        """Preset the SWA write locations, or forget them, where the engine has such."""
        if hasattr(self.kv, "set_swa_loc"):
            self.kv.set_swa_loc(loc)

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of a layer, each [slots, kv_heads, head_dim]."""
        found: tuple[Tensor, Tensor] = self.kv.get_kv_buffer(layer)
        return found

    def translate(self, loc: Tensor) -> Tensor:
        """Return the SWA slots of full slots, as the engine finds them, in its dtype."""
        found: Tensor = self.kv.translate_loc_from_full_to_swa(loc)
        return found

    def take_row(self) -> int:
        """Return a free row of the request table."""
        row: int = self.requests.free_slots.pop(0)
        return row

    def give_row(self, row: int) -> None:
        """Take back a row."""
        self.requests.free_slots.append(row)

    def extend(self, rows: Sequence[int], held: Sequence[int], ends: Sequence[int]) -> None:
        """Give the requests of some rows, which hold so many tokens, slots up to these ends."""
        table, counts = self.requests.req_to_token, [e - h for h, e in zip(held, ends, strict=True)]
        if self.sizes.page_size == 1:
            slots = self.allocator.alloc(sum(counts))
        else:
            last = [
                int(table[row, tokens - 1]) if tokens else -1
                for row, tokens in zip(rows, held, strict=True)
            ]
            slots = self.allocator.alloc_extend(
                prefix_lens=torch.tensor(held, device=self.device),
                prefix_lens_cpu=torch.tensor(held),
                seq_lens=torch.tensor(ends, device=self.device),
                seq_lens_cpu=torch.tensor(ends),
                last_loc=torch.tensor(last, device=self.device),
                extend_num_tokens=sum(counts),
            )
        if slots is None:
            raise RuntimeError("the engine's allocator has no room where ours has")
        parts = slots.to(torch.int32).split(counts)
        for row, begin, end, part in zip(rows, held, ends, parts, strict=True):
            table[row, begin:end] = part

    def held(self, row: int, begin: int, end: int) -> Tensor:
        """Return the full slots, int64, of tokens begin .. end-1 of a request."""
        found: Tensor = self.requests.req_to_token[row, begin:end].to(torch.int64)
        return found

    def shrink(self, row: int, begin: int, end: int) -> None:
        """Free the slots, full and SWA, of tokens begin .. end-1 of a request, its last ones."""
        self.allocator.free(self.held(row, begin, end))

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
