"""The engine's own hybrid pool, allocator and request table, filled the way ours is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from paritybit.reference.config import Kind, ModelConfig, Role
from paritybit.reference.pool import PoolSizes
from paritybit.reference.state_pool import StatePool
from paritybit.subjects.engines.shared.loading import Engine, named
from paritybit.subjects.engines.shared.missing import PartMissingError
from torch import Tensor


class SglangPool:
    """The engine's `SWAKVPool`, its allocator and its `ReqToTokenPool`, for one model.

    A draft model has storage of its own, and slots and rows of these. `states` are the world's,
    which our arithmetic reaches by the engine's state indices; None where no request has any.
    Besides the slots of `sizes` there are `spare` ones, in whole pages: `scratch`, which no
    request of the world ever holds, as long as the pool is not cleared. SWA slots are `kept_back`
    until there is no room without them: the engine may hold some longer than the world does.
    For each row there is room for `ahead` tokens more, of drafts to come.
    """

    def __init__(
        self,
        engine: Engine,
        config: ModelConfig,
        sizes: PoolSizes,
        dtype: torch.dtype,
        device: str,
        states: StatePool | None = None,
        draft: ModelConfig | None = None,
        spare: int = 0,
        ahead: int = 0,
    ) -> None:
        self.config = config
        self.states = states
        self.sizes = sizes
        self.device = device
        self.dtype = dtype
        self.spare = spare
        self.ahead = ahead * sizes.rows
        self.back = longer_held(sizes, config.window)
        self.configs = {Role.TARGET: config} | ({Role.DRAFT: draft} if draft else {})
        self.storages = {role: self._storage(engine, of) for role, of in self.configs.items()}
        self.kv = self.storages[Role.TARGET]
        self.allocator = engine.part(
            "srt.mem_cache.swa_memory_pool:SWATokenToKVPoolAllocator",
            "srt.mem_cache.allocator.swa:SWATokenToKVPoolAllocator",
        )(
            size=sizes.full_slots + spare + self.ahead,
            size_swa=sizes.swa_slots + spare + self.ahead + self.back,
            page_size=sizes.page_size,
            dtype=dtype,
            device=device,
            kvcache=self.kv,
            need_sort=False,
        )
        for role in self.configs.keys() - {Role.TARGET}:
            # The allocator makes the target's alone follow its map of full to SWA slots.
            if hasattr(self.storages[role], "register_mapping"):
                self.storages[role].register_mapping(self.allocator.full_to_swa_index_mapping)
        self.requests = engine.part("srt.mem_cache.memory_pool:ReqToTokenPool")(
            size=sizes.rows,
            max_context_len=config.max_context + ahead,
            device=device,
            enable_memory_saver=False,
        )
        # Which rows there are to give is the engine's: some releases give row 0 too.
        self.rows: tuple[int, ...] = tuple(self.requests.free_slots)
        self._take_scratch()

    def _storage(self, engine: Engine, config: ModelConfig) -> Any:
        """Return storage for the KV of a model, of the engine's class for its layers."""
        sizes, full, swa = self.sizes, config.full, config.swa
        common = {
            "size": sizes.full_slots + self.spare + self.ahead,
            "page_size": sizes.page_size,
            "dtype": self.dtype,
            "head_num": full.kv_heads,
            "head_dim": full.head_dim,
            "v_head_dim": full.head_dim,
            "device": self.device,
        }
        if not config.layers_of(Kind.SWA):
            made = engine.part("srt.mem_cache.memory_pool:MHATokenToKVPool")
            return made(**common, layer_num=len(config.layers), enable_memory_saver=False)
        made = engine.part("srt.mem_cache.swa_memory_pool:SWAKVPool")
        return named(made, enable_kvcache_transpose=False)(
            **common,
            size_swa=sizes.swa_slots + self.spare + self.ahead + self.back,
            swa_head_num=swa.kv_heads,
            swa_head_dim=swa.head_dim,
            swa_v_head_dim=swa.head_dim,
            swa_attention_layer_ids=list(config.layers_of(Kind.SWA)),
            full_attention_layer_ids=list(config.layers_of(Kind.FULL)),
        )

    def _take_scratch(self) -> None:
        """Take what requests are not given, or not at first.

        The first SWA page is given last: else a token's full slot and its SWA slot have one number
        until the pools go apart, and a translation that is left out changes nothing.
        """
        nothing = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.scratch: Tensor = self.allocator.alloc(self.spare) if self.spare else nothing
        swa = self.allocator.swa_attn_allocator
        first = self.sizes.swa_slots + self.ahead
        given, self.kept_back = swa.alloc(first + self.back).split((first, self.back))
        size = self.sizes.page_size
        swa.free(given[size:])
        swa.free(given[:size])

    @property
    def pages(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The full and the SWA pages that requests may hold: all but page 0 and what is apart."""
        size, found = self.sizes.page_size, []
        back = self.kept_back.tolist()
        for kind in Kind:
            apart = {slot // size for slot in self.apart(kind) + (back if kind is Kind.SWA else [])}
            count = self.slots(kind) // size
            found.append(tuple(page for page in range(1, count) if page not in apart))
        return found[0], found[1]

    def free_pages(self, kind: Kind) -> list[int]:
        """Return the pages of a sub-pool that the engine's allocator has free."""
        allocator = self.allocator
        full = kind is Kind.FULL
        of_kind = allocator.full_attn_allocator if full else allocator.swa_attn_allocator
        if hasattr(of_kind, "get_all_free_pages"):
            pages = of_kind.get_all_free_pages()
        else:
            pages = torch.cat((of_kind.free_pages, of_kind.release_pages))
        found: list[int] = pages.tolist()
        return found

    @property
    def mapping(self) -> Tensor:
        """The SWA slot of each full slot, int64 [full slots + 1]; the last is -1."""
        found: Tensor = self.allocator.full_to_swa_index_mapping
        return found

    def make_room(self, tokens: int) -> None:
        """Give out the SWA slots kept back, if there are not as many free as tokens."""
        if len(self.kept_back) and self.allocator.swa_available_size() < tokens:
            self.allocator.swa_attn_allocator.free(self.kept_back)
            self.kept_back = self.kept_back[:0]

    def slots(self, kind: Kind) -> int:
        """Return all slots of a sub-pool, the reserved page and those of no request included."""
        back = self.back if kind is Kind.SWA else 0
        return self.sizes.slots(kind) + self.spare + self.ahead + back

    def clear(self) -> None:
        """Own nothing but scratch slots, and those that are kept back."""
        self.allocator.clear()
        self.requests.clear()
        self.requests.req_to_token.zero_()
        self._take_scratch()

    def apart(self, kind: Kind) -> list[int]:
        """Return the scratch slots of a sub-pool."""
        slots = self.scratch if kind is Kind.FULL else self.translate(self.scratch)
        found: list[int] = slots.tolist()
        return found

    @contextmanager
    def stored_locations(self) -> Iterator[list[Tensor]]:
        """Collect the locations that the SWA sub-pool's store is given."""
        swa, found = self.kv.swa_kv_pool, list[Tensor]()
        store = swa.set_kv_buffer

        def watched(layer: object, loc: object, *arguments: object, **by_name: object) -> None:
            parts = [loc] if isinstance(loc, Tensor) else list(vars(loc).values())
            found.extend(part for part in parts if isinstance(part, Tensor))
            store(layer, loc, *arguments, **by_name)

        swa.set_kv_buffer = watched
        try:
            yield found
        finally:
            swa.set_kv_buffer = store

    @property
    def preset_locations(self) -> Tensor | None:
        """The SWA write locations preset for stores to come; None where there are none."""
        found: Tensor | None = self.kv.swa_loc if self.can_preset else None
        return found

    @cached_property
    def can_preset(self) -> bool:
        """Whether the engine's pool can be preset with SWA write locations, as in early releases.

        Raises PartMissingError if it has only one of the two attributes that belong to that.
        """
        held, setter = hasattr(self.kv, "swa_loc"), hasattr(self.kv, "set_swa_loc")
        if held != setter:
            gone = "set_swa_loc" if held else "swa_loc"
            raise PartMissingError(f"the engine's {type(self.kv).__name__} has no {gone}")
        return held

    def preset(self, loc: Tensor | None) -> None:
        """Preset the SWA write locations, or forget them, where the engine has such."""
        if self.can_preset:
            self.kv.set_swa_loc(loc)

    def keys_and_values(self, role: Role, layer: int) -> tuple[Tensor, Tensor]:
        """Return K and V of a layer of a model, each [slots, kv_heads, head_dim]."""
        found: tuple[Tensor, Tensor] = self.storages[role].get_kv_buffer(layer)
        return found

    def translate(self, loc: Tensor) -> Tensor:
        """Return the SWA slots of full slots, as the engine finds them, in its dtype."""
        found: Tensor = self.kv.translate_loc_from_full_to_swa(loc)
        return found

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
            raise RuntimeError(
                "the engine's allocator is full but the reference allocator has room"
            )
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


def longer_held(sizes: PoolSizes, window: int) -> int:
    """Return the SWA slots that an engine may hold beyond a world whose sub-pool is full.

    Of what left a window it keeps a page and the rest of one; a request that lost any holds the
    rest of its window in the world too, which bounds how many there are. Whole pages.
    """
    size = sizes.page_size
    requests = min(sizes.rows, sizes.swa_slots // max(window - 1, size))
    return 2 * requests * size
