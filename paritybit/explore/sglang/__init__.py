"""sglang's unified prefix cache and hybrid allocator, explored.

`world` builds the engine's objects, `scheduler` performs a step as the engine's scheduler does,
`cache` reads the tree, `machine` states the actions and the laws, and `key` names a state.
"""

from paritybit.explore.sglang.machine import machines as machines
from paritybit.explore.sglang.machine import shared as shared
from paritybit.explore.sglang.world import load as load
from paritybit.explore.sglang.world import require_room as require_room
