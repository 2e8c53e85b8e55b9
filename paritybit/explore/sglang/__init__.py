"""Explores sglang's unified prefix cache and hybrid allocator.

`world` builds the engine's objects, `scheduler` performs a step like the engine's scheduler,
`tree` reads the prefix cache and identifies a state, and `machine` has the actions and the laws.
"""

from paritybit.explore.sglang.machine import machines as machines
from paritybit.explore.sglang.machine import shared as shared
from paritybit.explore.sglang.world import load as load
from paritybit.explore.sglang.world import require_room as require_room
