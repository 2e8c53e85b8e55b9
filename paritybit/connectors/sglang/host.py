"""The host pools of a prefix cache that also keeps KV on the host: their free and their held slots.

A host pool states which slots are free. The nodes of the prefix cache hold the others. If the nodes
cannot be read, because the tree is not in Python, the slots that the pool marks as allocated count
as held.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import NotRecognisedError
from paritybit.watch.facts import HostSlots

POOLS = ("kv", "swa", "mamba")
"""The names of host pools, by the number of a node's component."""

UNDER_WAY = ("ongoing_write_through", "ongoing_load_back", "ongoing_prefetch", "ongoing_backup")
"""What a prefix cache is copying. These copies may use host slots that no node holds."""


def at_rest(cache: Any) -> bool:
    """Return whether a prefix cache copies nothing and has no host slots that wait to be freed."""
    controller = getattr(cache, "cache_controller", None)
    queue = getattr(controller, "host_mem_release_queue", None)
    waiting = queue is not None and not queue.empty()
    return not waiting and not any(getattr(cache, name, None) for name in UNDER_WAY)


def slots_of(cache: Any) -> dict[str, HostSlots]:
    """Return the slots of each host pool of a prefix cache, by name. Raises NotRecognisedError."""
    pools = dict(pools_of(cache))
    if not pools:
        return {}
    held: dict[str, list[Tensor]] = {name: [torch.empty(0, dtype=torch.int64)] for name in pools}
    locked = dict.fromkeys(pools, 0)
    try:
        for name, value, locks in (one for node in nodes_of(cache) for one in values_of(node)):
            if value is not None and name in pools:
                held[name].append(value.flatten().cpu())
                locked[name] += len(value) * (locks > 0)
    except NotImplementedError:
        for name, pool in pools.items():
            if not isinstance(getattr(pool, "slot_used", None), Tensor):
                what = f"the slots that a tree holds of a host pool {name}"
                raise NotRecognisedError(what) from None
            held[name] = [pool.slot_used.cpu().nonzero().flatten()]
    return {
        f"host {name}": HostSlots(size_of(pool), free_of(pool), torch.cat(held[name]), locked[name])
        for name, pool in pools.items()
    }


def pools_of(cache: Any) -> Iterator[tuple[str, Any]]:
    """Yield the host pools of a prefix cache and their names in POOLS."""
    held = getattr(cache, "host_pool_group", None)
    held = getattr(cache, "token_to_kv_pool_host", None) if held is None else held
    entries = getattr(held, "entry_map", None)
    if entries is None and held is not None:
        yield POOLS[0], held
    for name, entry in (entries or {}).items():
        if str(getattr(name, "value", name)) in POOLS:
            yield str(getattr(name, "value", name)), entry.host_pool


def nodes_of(cache: Any) -> Iterator[Any]:
    """Yield the nodes of a prefix cache. Raises NotImplementedError if they are not in Python."""
    waiting = [cache.root_node]
    while waiting:
        node = waiting.pop()
        waiting += node.children.values()
        yield node


def values_of(node: Any) -> Iterator[tuple[str, Tensor | None, int]]:
    """Yield the host slots of a node, for each pool with its name and the number of locks."""
    parts = getattr(node, "component_data", None)
    if parts is None:
        yield POOLS[0], node.host_value, int(node.host_ref_counter)
    for name, part in zip(POOLS, parts or (), strict=False):
        yield name, part.host_value, int(part.host_lock_ref)


def size_of(pool: Any) -> int:
    """Return the number of slots of a host pool."""
    return int(getattr(pool, "logical_size", pool.size))


def free_of(pool: Any) -> Tensor:
    """Return the free slots of a host pool. Raises NotRecognisedError."""
    if not isinstance(getattr(pool, "free_slots", None), Tensor):
        raise NotRecognisedError(f"the free slots of a {type(pool).__name__}")
    return torch.cat([pool.free_slots, *getattr(pool, "release_slots", ())]).cpu()
