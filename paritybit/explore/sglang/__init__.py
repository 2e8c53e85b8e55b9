"""Explores sglang's unified prefix cache and hybrid allocator.

`world` builds the engine's objects, `scheduler` performs a step like the engine's scheduler,
`cache` reads the tree, `machine` has the actions and the laws, and `key` identifies a state.
"""

from paritybit.explore.sglang.machine import machines as machines
from paritybit.explore.sglang.machine import shared as shared
from paritybit.explore.sglang.world import load as load
from paritybit.explore.sglang.world import require_room as require_room
