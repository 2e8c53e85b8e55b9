"""Every slot of a host pool is free or in the prefix cache while nothing runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paritybit.connectors.sglang.allocations import slots_of
from properties.connectors.parts import Part
from properties.support.watching import Scene

SIZE = 8


class RustCache(Part):
    """A prefix cache whose tree is not in Python."""

    @property
    def root_node(self) -> Any:
        """Fail as such a tree does."""
        raise NotImplementedError


def a_pool(free: list[int], **more: Any) -> Part:
    """Return a host pool with these free slots, of which it keeps the last one apart."""
    parts = torch.tensor(free[:-1], dtype=torch.int64), [torch.tensor(free[-1:])]
    return Part(size=SIZE, free_slots=parts[0], release_slots=parts[1], **more)


def components(*values: list[int] | None, locks: int = 0) -> Part:
    """Return a node of the prefix cache, with host slots for each component."""
    slots = [None if value is None else torch.tensor(value) for value in values]
    parts = [Part(host_value=value, host_lock_ref=locks) for value in slots]
    return Part(children={}, component_data=parts)


def python(free: list[int], locks: int = 0) -> Part:
    """Return a prefix cache with several host pools."""
    entries = {"kv": a_pool(free), "swa": a_pool([*range(1, SIZE)])}
    group = Part(entry_map={name: Part(host_pool=pool) for name, pool in entries.items()})
    root = components(None, None)
    root.children = {0: components([0, 1], [0], locks=locks), 1: components([2], None)}
    return Part(root_node=root, host_pool_group=group)


def rust(free: list[int], locks: int = 0) -> Part:
    """Return a prefix cache whose pool marks the slots 0, 1 and 2 as allocated."""
    del locks
    used = torch.arange(SIZE) < 3
    group = Part(entry_map={"kv": Part(host_pool=a_pool(free, slot_used=used))})
    return RustCache(host_pool_group=group)


RIGHT = [7, 6, 5, 4, 3]
FAULTS = {
    "none": (RIGHT, 0, []),
    "a free that is dropped": (RIGHT[:-1], 0, ["neither free nor in the prefix cache"]),
    "a slot that is freed while it is cached": ([*RIGHT, 2], 0, ["free and in the prefix cache"]),
    "a slot that is freed twice": ([*RIGHT, 3], 0, ["slot 3 (host kv) is free twice"]),
    "a node that stays locked": (RIGHT, 1, ["of the prefix cache are locked (host kv)"]),
}


@pytest.mark.parametrize("made", [python, rust])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_leak_on_the_host_is_found(
    made: Callable[[list[int], int], Part], fault: str, tmp_path: Path
) -> None:
    free, locks, texts = FAULTS[fault]
    if made is rust and locks:
        pytest.skip("the locks of a tree that is not in Python are not known")
    scene = Scene(tmp_path)
    slots = slots_of(made(free, locks))
    scene.watcher.idle({}, hosts={name: one for name, one in slots.items() if "kv" in name})
    found = [line["text"] for line in scene.lines("finding")]
    assert [text in line for text, line in zip(texts, found, strict=True)] == [True] * len(texts)
    scene.close()
