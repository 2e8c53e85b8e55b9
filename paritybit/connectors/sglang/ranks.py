"""The rank of this process, and the numbers of ranks."""

import sys
from collections.abc import Mapping
from typing import Any

from paritybit.connectors.hooking import maybe
from paritybit.connectors.sharing import parted

ATTENTION = "sglang.srt.layers.dp_attention"
CONTEXT = "sglang.srt.runtime_context"
GROUPS = "sglang.srt.distributed"

AXES = {"attn_dp": "dp", "pp": "pp", "attn_cp": "cp", "attn_tp": "tp"}
SHARED = "attn_dcp"
"""The engine's axes by which the KV of its ranks differs. Experts have no KV. SHARED is the one
whose ranks share contexts."""


def rank_of(scheduler: Any) -> dict[str, tuple[int, int]]:
    """Return the rank of a scheduler's process and the number of ranks, by axis."""
    held = context() or functions()
    found = {
        axis: (int(held[f"{name}_rank"]), size)
        for name, axis in AXES.items()
        if (size := int(held.get(f"{name}_size") or 1)) > 1
    }
    found = parted(found, (held.get(f"{SHARED}_rank"), held.get(f"{SHARED}_size")))
    replicas, replica = maybe(scheduler, "server_args.dp_size"), maybe(scheduler, "dp_rank")
    if "dp" not in found and isinstance(replicas, int) and replicas > 1 and replica is not None:
        found["dp"] = int(replica), replicas  # Engines of their own.
    return found


def context() -> Mapping[str, Any]:
    """Return the ranks and sizes of a release that keeps them in one object."""
    try:
        parallel = sys.modules[CONTEXT].get_parallel()
    except (KeyError, AttributeError):
        return {}
    names = (f"{name}_{what}" for name in (*AXES, SHARED) for what in ("rank", "size"))
    return {name: getattr(parallel, name) for name in names if hasattr(parallel, name)}


def functions() -> Mapping[str, Any]:
    """Return the ranks and sizes of a release that has a function for each."""
    module, found = sys.modules.get(ATTENTION), dict[str, Any]()
    for name, axis in AXES.items():
        for what in ("rank", "size"):
            function = getattr(module, f"get_attention_{axis}_{what}", None)
            if function is not None:
                found[f"{name}_{what}"] = function()
    stages = maybe(sys.modules.get(GROUPS), "get_pp_group")
    if stages is not None:
        found |= {"pp_rank": stages().rank_in_group, "pp_size": stages().world_size}
    return found
