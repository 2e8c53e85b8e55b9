"""The host pools of a prefix cache that also keeps KV on the host: their free and their held slots.

A host pool states which slots are free. The nodes of the prefix cache hold the others. If the nodes
cannot be read, because the tree is not in Python, the slots that the pool marks as allocated count
as held.
"""

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
    """Return the slots of each host pool of a prefix cache, by name. Raises NotRecognisedError.

    Caches with a single host pool, as of releases before 0.5.17, have none.
    """
    group = getattr(cache, "host_pool_group", None) or getattr(cache, "token_to_kv_pool_host", None)
    entries = (getattr(group, "entry_map", None) or {}).items()
    named = {str(getattr(name, "value", name)): entry.host_pool for name, entry in entries}
    pools = {name: pool for name, pool in named.items() if name in POOLS}
    held: dict[str, list[Tensor]] = {name: [torch.empty(0, dtype=torch.int64)] for name in pools}
    locked = dict.fromkeys(pools, 0)
    try:
        nodes = [cache.root_node] if pools else []  # Those of a tree in Rust raise an error.
        for node in nodes:
            nodes += node.children.values()
            for name, part in zip(POOLS, node.component_data, strict=False):
                if part.host_value is not None and name in pools:
                    held[name].append(part.host_value.flatten().cpu())
                    locked[name] += len(part.host_value) * (int(part.host_lock_ref) > 0)
    except NotImplementedError:
        held = {name: [pool.slot_used.cpu().nonzero().flatten()] for name, pool in pools.items()}
    return {
        f"host {name}": HostSlots(
            int(getattr(pool, "logical_size", pool.size)),
            free_of(pool),
            torch.cat(held[name]),
            locked[name],
        )
        for name, pool in pools.items()
    }


def free_of(pool: Any) -> Tensor:
    """Return the free slots of a host pool. Raises NotRecognisedError."""
    if not isinstance(getattr(pool, "free_slots", None), Tensor):
        raise NotRecognisedError(f"the free slots of a {type(pool).__name__}")
    return torch.cat([pool.free_slots, *getattr(pool, "release_slots", ())]).cpu()
